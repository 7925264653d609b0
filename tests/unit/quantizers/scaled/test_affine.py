import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.formats import INT8, INT8_NARROW, UINT8
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize_affine
from tests.each_case import each_case

INF, NAN = float("inf"), float("nan")


@each_case("scale", [0.0, -1.0, NAN, INF, 1e-50])
def test_refuses_scale(scale):
    with pytest.raises(QuantizerValueError, match="a scale must be positive and finite"):
        fake_quantize_affine(torch.ones(2), scale, 0, UINT8)


@each_case(
    "zero_point, format",
    [(-1, UINT8), (256, UINT8), (1.5, UINT8), (-128, INT8_NARROW), (128, INT8), (NAN, INT8)],
)
def test_refuses_zero_point(zero_point, format):
    with pytest.raises(QuantizerValueError, match=rf"zero point {zero_point:g} is not a {format.name}"):
        fake_quantize_affine(torch.ones(2), 1.0, zero_point, format)


def test_refuses_parameters_of_other_shapes():
    with pytest.raises(QuantizerShapeError, match=r"zero_point has shape \(\), expected \(2,\)"):
        fake_quantize_affine(torch.ones(2, 3), [1.0, 1.0], 0, UINT8, axis=0)
