import pytest
import torch

from ptq_cli.core.errors import QuantizerTypeError, QuantizerValueError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers import straight_through
from ptq_cli.quantizers.scaled.tensor_quantizer import learned_fake_quantize
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


def test_where_x_is_clipped_it_is_pacts():
    x = torch.tensor([-5.0, 5.0, 6.0])
    amax = torch.tensor(1.0, requires_grad=True)
    learned_fake_quantize(x, amax, IntegerFormat(8, True, True)).backward(torch.tensor([1.0, 10.0, 100.0]))
    assert amax.grad.item() == 109.0


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
