import pytest
import torch

from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers import straight_through
from ptq_cli.quantizers.scaled.tensor_quant import fake_tensor_quant, tensor_quant
from ptq_cli.quantizers.scaled.tensor_quantizer import learned_fake_quantize, reduce_amax
from tests.each_case import each_case

NARROW = [IntegerFormat(bits, signed, narrow_range=signed) for bits in (2, 3, 8) for signed in (True, False)]


def formula(x, amax, format):
    """``round(clamp(x / scale)) * scale`` with plain autograd and a straight-through rounding."""
    scale = amax / format.qmax
    low = -amax if format.signed else torch.zeros_like(amax)
    return straight_through.round(torch.maximum(torch.minimum(x, amax), low) / scale) * scale


@each_case("format", NARROW, ids=lambda format: format.name)
@each_case("shape", [(), (1, 4)], ids=str)
def test_gradients_are_autograds_of_the_formula(format, shape):
    generator = torch.Generator().manual_seed(format.bits)
    x = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    x = (x if format.signed else x.abs()).requires_grad_()
    amax = (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5).requires_grad_()
    upstream = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad(formula(x, amax, format), (x, amax), upstream)
    found = torch.autograd.grad(learned_fake_quantize(x, amax, format), (x, amax), upstream)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)


def test_a_dead_amax_gives_and_gets_0():
    amax = torch.zeros((), requires_grad=True)
    y = learned_fake_quantize(torch.tensor([1.0, -2.0]), amax, IntegerFormat(8, True))
    y.sum().backward()
    assert (y.tolist(), amax.grad.item()) == ([0.0, 0.0], 0.0)


def test_what_it_refuses():
    with pytest.raises(QuantizerValueError, match="amax must be finite and not negative"):
        learned_fake_quantize(torch.ones(1), torch.tensor(-1.0), IntegerFormat(8, True))
    with pytest.raises(QuantizerTypeError, match="an unsigned quantizer got negative values"):
        learned_fake_quantize(-torch.ones(1), torch.tensor(1.0), IntegerFormat(8, False))


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 3)), (1, (0, 1)), (None, ())])
def test_no_values_have_the_magnitude_0(axis, shape):
    found = reduce_amax(torch.zeros(0, 3), axis)
    assert found.shape == shape
    assert torch.equal(found, torch.zeros(shape))


@each_case("axis", [2, -3, (0, 5), (0, 0), (1, -1)])
def test_axes_that_are_not_there_or_there_twice(axis):
    with pytest.raises(AxisError) as caught:
        reduce_amax(torch.ones(2, 3), axis)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, IndexError)


# What the recorded vectors (``tests/golden/quantizers``) do not say about the mirrors.


MIRRORS = [tensor_quant, fake_tensor_quant]


def test_scale_is_the_reciprocal_of_onnx():
    outputs, scale = tensor_quant(torch.tensor([0.5]), torch.tensor(2.0))
    assert (outputs.item(), scale.item()) == (32.0, 63.5)


@pytest.mark.parametrize("mirror", MIRRORS)
def test_messages(mirror):
    with pytest.raises(QuantizerValueError, match="amax must not be negative, got -1"):
        mirror(torch.ones(2), torch.tensor([-1.0, 2.0]))
    with pytest.raises(QuantizerTypeError, match="an unsigned quantizer got negative values"):
        mirror(-torch.ones(2), torch.tensor(1.0), unsigned=True)
    with pytest.raises(
        QuantizerShapeError, match=r"amax of shape \(3,\) does not broadcast to inputs of shape \(2,\)"
    ):
        mirror(torch.ones(2), torch.ones(3))
    with pytest.raises(QuantizerValueError, match="1 bits is outside"):
        mirror(torch.ones(2), torch.tensor(1.0), num_bits=1)


def test_scale_beyond_float16():
    with pytest.raises(QuantizerValueError, match=r"amax is too small for torch\.float16"):
        tensor_quant(torch.ones(2, dtype=torch.float16), torch.tensor(1e-4))
