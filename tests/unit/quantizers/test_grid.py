import numpy as np
import pytest
import torch

from ptq_cli.core.errors import RecipeValueError, UsageError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.granularity import PerAxis, PerTensor
from ptq_cli.quantizers.grid import (
    Grid,
    broadcast_against,
    granularity_of,
    integer_dtype,
    read_parameter,
    require_float,
    require_no_nan,
    to_integers,
    to_values,
)


def uint8_grid(scale, zero_point):
    return Grid(*(torch.tensor(value) for value in (scale, float(zero_point), 0.0, 255.0)))


def test_integers_saturate_and_nan_survives():
    found = to_integers(torch.tensor([float("inf"), -float("inf"), 3e38, float("nan")]), uint8_grid(1e-3, 7))
    assert found[:3].tolist() == [255.0, 0.0, 255.0]
    assert torch.isnan(found[3])


def test_minus_zero_becomes_zero():
    grid = uint8_grid(1.0, 0)
    assert not torch.signbit(to_values(to_integers(torch.tensor(-0.0), grid), grid))


def test_values_overflow_to_infinity():
    assert to_values(torch.tensor(255.0), uint8_grid(3e38, 0)).item() == float("inf")


@pytest.mark.parametrize(
    ("bits", "signed", "dtype"),
    [
        (2, True, torch.int8),
        (8, False, torch.uint8),
        (9, True, torch.int16),
        (16, False, torch.uint16),
    ],
)
def test_integer_dtype(bits, signed, dtype):
    assert integer_dtype(IntegerFormat(bits, signed)) is dtype


def test_granularity_of_an_axis():
    assert granularity_of(None) == PerTensor()
    assert granularity_of(-1) == PerAxis(-1)


@pytest.mark.parametrize(
    "value", [torch.tensor([1.5, 2.0], dtype=torch.bfloat16), [1.5, 2.0], np.array([1.5, 2])]
)
def test_parameter_may_be_a_tensor_or_numbers(value):
    found = read_parameter("amax", value, torch.zeros(2, 3), PerAxis(0))
    assert found.tolist() == [1.5, 2.0]
    assert found.dtype == np.float64


def test_parameter_with_gradient_history():
    value = torch.tensor(2.0, requires_grad=True) * 2
    assert read_parameter("amax", value, torch.zeros(3), PerTensor()) == 4.0


@pytest.mark.parametrize(
    ("value", "axis", "said"),
    [
        ([1.0, 2.0], None, r"amax has shape \(2,\), \(\) is wanted for PerTensor\(\) of shape \(2, 3\)"),
        (1.0, 0, r"amax has shape \(\), \(2,\) is wanted for PerAxis\(axis=0\) of shape \(2, 3\)"),
        ([[1.0], [2.0]], 0, r"amax has shape \(2, 1\), \(2,\) is wanted"),
        ([1.0, 2.0], 1, r"amax has shape \(2,\), \(3,\) is wanted"),
    ],
)
def test_parameter_of_another_shape(value, axis, said):
    with pytest.raises(UsageError, match=said):
        read_parameter("amax", value, torch.zeros(2, 3), granularity_of(axis))


def test_axis_that_is_not_there():
    with pytest.raises(RecipeValueError, match=r"axis 2 is outside a tensor of shape \(2, 3\)"):
        read_parameter("amax", [1.0], torch.zeros(2, 3), PerAxis(2))


def test_broadcasting():
    x = torch.zeros(2, 3, 4)
    assert broadcast_against(x, np.ones(3), PerAxis(1)).shape == (1, 3, 1)
    assert broadcast_against(x, 1.0, PerTensor()).shape == ()
    assert broadcast_against(x, 1.0, PerTensor()).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64])
def test_only_floats(dtype):
    with pytest.raises(UsageError, match="a quantizer takes a float tensor, got torch"):
        require_float(torch.ones(2, dtype=dtype))


def test_nan():
    with pytest.raises(RecipeValueError, match="NaN cannot be quantized"):
        require_no_nan(torch.tensor([0.0, float("nan")]))
