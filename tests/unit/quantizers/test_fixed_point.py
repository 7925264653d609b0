import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError, UsageError
from ptq_cli.quantizers.automatic_scale import AutoScale
from ptq_cli.quantizers.fixed_point import fixed_point, quantize_fixed_point, require_power_of_two
from tests.each_case import each_case

WEIGHT = torch.tensor([[0.9, -0.3, 0.02], [-1.7, 0.1, 0.05], [0.4, 0.25, -0.01], [1.1, -0.2, 0.03]])
POWERS = torch.tensor([2.0, 0.5, 0.0625])


def values_of(found):
    shape = [1] * found.integers.ndim
    if found.axis is not None:
        shape[found.axis] = -1
    return found.integers.float() * found.scale.reshape(shape)


@each_case("alpha", [None, 4.0, POWERS, "auto_po2", "po2"], ids=lambda value: str(value)[:8])
@each_case("bits", [2, 4, 8, 9, 16])
@each_case("symmetric", [False, True])
@each_case("keep_negative", [False, True])
def test_integers_times_scale_is_the_fake_quantized_tensor(alpha, bits, symmetric, keep_negative):
    arguments = (bits, 1, symmetric, keep_negative, alpha)
    found = quantize_fixed_point(WEIGHT, *arguments)
    assert torch.equal(values_of(found), fixed_point(WEIGHT, *arguments))
    low, high = torch.aminmax(found.integers.long())
    assert found.format.qmin <= low and high <= found.format.qmax
    assert found.integers.element_size() == (1 if bits <= 8 else 2)
    assert found.format.signed == (keep_negative or isinstance(alpha, str))


def test_scales_along_an_axis_and_the_step_of_quantize_linear():
    plain = quantize_fixed_point(WEIGHT, 4, 1)
    assert (plain.axis, plain.scale.shape, plain.step) == (None, torch.Size([]), 0.25)
    by_channel = quantize_fixed_point(WEIGHT, 4, 1, alpha=POWERS)
    assert (by_channel.axis, by_channel.scale.tolist(), by_channel.step) == (1, [0.5, 0.125, 0.015625], 0.25)
    found = quantize_fixed_point(WEIGHT, 4, alpha="auto_po2", auto=AutoScale(axis=0))
    assert (found.axis, found.scale.shape, found.step) == (0, torch.Size([4]), None)
    assert quantize_fixed_point(torch.zeros(0, 3), 4, alpha="auto_po2").integers.shape == (0, 3)


@each_case("alpha", [0.3, -1.0, 0.0, 2.0**-130, torch.tensor([1.0, 0.75, 2.0]), "auto"], ids=str)
def test_scales_that_are_no_powers_of_two_are_refused(alpha):
    with pytest.raises(QuantizerValueError, match="is not a power of two"):
        quantize_fixed_point(WEIGHT, 4, alpha=alpha)


def test_proof_of_powers_of_two():
    require_power_of_two(2.0 ** torch.arange(-126, 128))
    require_power_of_two(torch.zeros(0))
    for wrong in (0.0, -2.0, 3.0, float("inf"), float("nan"), 2.0**-127, 1 + 2.0**-23):
        with pytest.raises(QuantizerValueError):
            require_power_of_two(torch.tensor([1.0, wrong]))


def test_what_no_onnx_tensor_holds_is_refused():
    with pytest.raises(QuantizerValueError, match="1 bits is outside 2 to 16"):
        quantize_fixed_point(WEIGHT, 1)
    with pytest.raises(QuantizerValueError, match="NaN"):
        quantize_fixed_point(torch.tensor([float("nan")]), 4)
    with pytest.raises(QuantizerShapeError, match="differ along 2 axes"):
        quantize_fixed_point(WEIGHT, 4, alpha=torch.ones(4, 3))
    with pytest.raises(UsageError, match="float tensor"):
        quantize_fixed_point(torch.ones(2, dtype=torch.int32), 4)
