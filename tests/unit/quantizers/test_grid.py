import numpy as np
import pytest
import torch

from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerTypeError
from ptq_cli.core.formats import PerAxis
from ptq_cli.quantizers.grid import (
    granularity_of,
    read_parameter,
    require_amax,
    require_no_nan,
    require_not_negative,
)
from tests.each_case import each_case

NAN, INF = float("nan"), float("inf")


@each_case(
    "value, dtype",
    [
        (torch.tensor([1.5, 2.0], dtype=torch.bfloat16), torch.float32),
        (torch.tensor([1.5, 2.0], dtype=torch.float64), torch.float64),
        ([1.5, 2.0], torch.float64),
        (np.array([1.5, 2]), torch.float64),
    ],
)
def test_parameter_may_be_a_tensor_or_numbers(value, dtype):
    found = read_parameter("amax", value, torch.zeros(4, 2, 3), PerAxis(1))
    assert found.tolist() == [[[1.5], [2.0]]]
    assert found.dtype == dtype


@each_case(
    "value, axis, said",
    [
        ([1.0, 2.0], None, r"amax has shape \(2,\), expected \(\) for PerTensor\(\) of shape \(2, 3\)"),
        (1.0, 0, r"amax has shape \(\), expected \(2,\) for PerAxis\(axis=0\) of shape \(2, 3\)"),
        ([[1.0], [2.0]], 0, r"amax has shape \(2, 1\), expected \(2,\)"),
        ([1.0, 2.0], 1, r"amax has shape \(2,\), expected \(3,\)"),
    ],
)
def test_parameter_of_another_shape(value, axis, said):
    with pytest.raises(QuantizerShapeError, match=said):
        read_parameter("amax", value, torch.zeros(2, 3), granularity_of(axis))


def test_axis_that_is_not_there():
    with pytest.raises(AxisError, match=r"axis 2 is outside a tensor of shape \(2, 3\)"):
        read_parameter("amax", [1.0], torch.zeros(2, 3), PerAxis(2))


@pytest.mark.parametrize("values", [[1.0, -1e-45], [NAN, -1.0], [-INF, 0.0]])
def test_negative_values_are_found_behind_nan_too(values):
    with pytest.raises(QuantizerTypeError, match="an unsigned quantizer got negative values"):
        require_not_negative(torch.tensor(values))


@pytest.mark.parametrize("check", [require_amax, require_no_nan, require_not_negative])
def test_nothing_to_check_is_right(check):
    check(torch.zeros(0))
