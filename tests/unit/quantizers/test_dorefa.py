import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.dorefa import clamp_by_linear, k_bit_quantize, k_bit_quantize_forward
from tests.each_case import each_case


@each_case("k", [1, 2, 4, 8])
def test_levels_are_evenly_spaced_from_0_to_1(k):
    levels = k_bit_quantize(torch.linspace(0, 1, 5000), k).unique()
    assert torch.equal(levels, torch.arange(2.0**k) / (2**k - 1))


@each_case(
    "k, error",
    [
        (0, QuantizerValueError),
        (-3, QuantizerValueError),
        (0.5, QuantizerValueError),
        (1.5, QuantizerTypeError),
    ],
)
@each_case("function", [k_bit_quantize, k_bit_quantize_forward])
def test_bits_that_are_none(function, k, error):
    with pytest.raises(error):
        function(torch.ones(2), k)


def test_a_large_constant_has_no_place_between_0_and_1():
    assert torch.isnan(clamp_by_linear(torch.full((2,), 1000.0))).all()
    assert clamp_by_linear(torch.full((2,), 1000.0), eps=1.0).tolist() == [0.0, 0.0]


def test_nothing_has_no_extremes():
    with pytest.raises(QuantizerShapeError, match=r"a tensor of shape \(0,\) has no smallest"):
        clamp_by_linear(torch.zeros(0))
