import numpy as np
import pytest
import torch

from ptq_cli.core.errors import (
    AxisError,
    QuantizerShapeError,
    QuantizerTypeError,
    QuantizerValueError,
    UnsupportedFormatError,
)
from ptq_cli.core.formats import INT8, INT8_NARROW, UINT8, IntegerFormat
from ptq_cli.quantizers import straight_through
from ptq_cli.quantizers.scaled.float8_quantize import scaled_e4m3
from ptq_cli.quantizers.scaled.scaled_quantize import (
    fake_quantize,
    fake_quantize_affine,
    learned_fake_quantize,
    quantize,
)
from ptq_cli.quantizers.scaled.tensor_quant import fake_tensor_quant, tensor_quant
from ptq_cli.quantizers.scaled.tensor_quantizer import reduce_amax
from tests.each_case import each_case

INF, NAN = float("inf"), float("nan")
ZERO_AMAX = 2.0**-24


class TestFakeQuantize:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [({"bits": 2}, [-1, -1, 0, 0, 1, 1]), ({"bits": 2, "narrow_range": False}, [-2, -1, 0, 0, 1, 1])],
        ids=["narrow", "full"],
    )
    def test_two_bits(self, options, expected):
        x = torch.tensor([-9.0, -0.6, -0.5, 0.5, 0.6, 9.0])
        assert fake_quantize(x, 1.0, **options).tolist() == expected

    @each_case("bits", range(2, 9))
    @each_case("narrow", [True, False])
    def test_signed_range(self, bits, narrow):
        top = 2 ** (bits - 1) - 1
        x = torch.tensor([-INF, -1e9, 1e9, INF])
        low = -top if narrow else -top - 1
        found = fake_quantize(x, float(top), bits=bits, narrow_range=narrow)
        assert found.tolist() == [low, low, top, top]

    @each_case("bits", range(2, 9))
    @each_case("narrow", [True, False])
    def test_unsigned_range(self, bits, narrow):
        top = 2**bits - 1
        x = torch.tensor([-0.0, 0.4, 1e9, INF])
        found = fake_quantize(x, float(top), bits=bits, unsigned=True, narrow_range=narrow)
        assert found.tolist() == [0.0, 0.0, top, top]

    @pytest.mark.parametrize("axis", [1, -2])
    def test_each_channel_has_its_own_scale(self, axis):
        x = torch.ones(2, 2, 3) * 0.6
        found = fake_quantize(x, [1.0, 3.0], bits=2, axis=axis)
        assert found[:, 0].unique().tolist() == [1.0]
        assert found[:, 1].unique().tolist() == [0.0]

    def test_gradient_passes_up_to_amax_and_not_beyond(self):
        beyond = float(np.nextafter(np.float32(0.3), np.float32(1)))
        x = torch.tensor([-beyond, -0.3, 0.0, 0.3, beyond, INF, NAN], requires_grad=True)
        fake_quantize(x, torch.tensor(0.3)).backward(torch.full((7,), 2.0))
        assert x.grad.tolist() == [0.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0]

    @pytest.mark.parametrize("amax", [0.0, 1e-40, ZERO_AMAX])
    def test_zero_channel_gives_zero_for_every_value(self, amax):
        x = torch.tensor([-INF, -5.0, -0.0, amax, 5.0, INF], requires_grad=True)
        found = fake_quantize(x, amax)
        found.sum().backward()
        assert found.tolist() == [0.0] * 6
        assert not torch.signbit(found).any()
        assert x.grad.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]

    def test_float16_whose_steps_would_overflow(self):
        x = torch.tensor([1e-6, -1e-6], dtype=torch.float16)
        assert torch.allclose(fake_quantize(x, float(x[0])), x)

    @each_case("amax", [-1.0, NAN, INF, 1e39])
    def test_refuses_amax(self, amax):
        with pytest.raises(QuantizerValueError, match="amax must be finite and not negative"):
            fake_quantize(torch.ones(2), amax)

    def test_refuses_negative_values_for_unsigned(self):
        with pytest.raises(QuantizerTypeError, match="an unsigned quantizer got negative values"):
            fake_quantize(torch.tensor([1.0, -1e-9]), 1.0, unsigned=True)

    @pytest.mark.parametrize("bits", [1, 17])
    def test_refuses_bits(self, bits):
        with pytest.raises(QuantizerValueError, match="outside 2 to 16"):
            fake_quantize(torch.ones(2), 1.0, bits=bits)

    def test_refuses_integers(self):
        with pytest.raises(QuantizerTypeError, match=r"expects a float tensor, got torch\.int64"):
            fake_quantize(torch.ones(2, dtype=torch.int64), 1.0)

    def test_refuses_amax_of_another_shape(self):
        with pytest.raises(QuantizerShapeError, match=r"amax has shape \(3,\), expected \(2,\)"):
            fake_quantize(torch.ones(2, 3), torch.ones(3), axis=0)


class TestQuantize:
    @each_case("bits", range(2, 9))
    @each_case("unsigned", [True, False])
    def test_integers_times_scale_is_the_fake_quantized_value(self, bits, unsigned):
        x = torch.linspace(0 if unsigned else -2, 2, 97)
        integers, scale = quantize(x, 1.3, bits=bits, unsigned=unsigned)
        assert integers.dtype is (torch.uint8 if unsigned else torch.int8)
        assert torch.equal(integers * scale, fake_quantize(x, 1.3, bits=bits, unsigned=unsigned))

    def test_scale_has_the_shape_of_amax(self):
        integers, scale = quantize(torch.ones(4, 3, 2), torch.tensor([1.27, 2.54, 0.0]), axis=1)
        assert scale.tolist() == pytest.approx([0.01, 0.02, 1.0])
        assert integers[0, :, 0].tolist() == [100, 50, 0]

    def test_zero_channel_has_scale_1(self):
        integers, scale = quantize(torch.tensor([5.0, -INF]), 0.0)
        assert (integers.tolist(), scale.item()) == ([0, 0], 1.0)

    def test_refuses_nan(self):
        with pytest.raises(QuantizerValueError, match="NaN cannot be quantized"):
            quantize(torch.tensor([NAN]), 1.0)


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
        QuantizerShapeError, match=r"amax of shape \(3,\) does not broadcast to a tensor of shape \(2,\)"
    ):
        mirror(torch.ones(2), torch.ones(3))
    with pytest.raises(QuantizerValueError, match="1 bits is outside"):
        mirror(torch.ones(2), torch.tensor(1.0), num_bits=1)


def test_scale_beyond_float16():
    with pytest.raises(QuantizerValueError, match=r"amax is too small for torch\.float16"):
        tensor_quant(torch.ones(2, dtype=torch.float16), torch.tensor(1e-4))


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


# Every byte but the two NaN, 0x7f and 0xff.
VALUES = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
FINITE = VALUES[torch.isfinite(VALUES)].unique()


def test_every_value_of_the_format_stays():
    assert torch.equal(scaled_e4m3(FINITE), FINITE)


def test_others_go_to_the_nearest_with_ties_to_the_even_mantissa():
    middle = (FINITE[1:] + FINITE[:-1]) / 2
    found = scaled_e4m3(middle)
    even = torch.minimum((found - FINITE[1:]).abs(), (found - FINITE[:-1]).abs()) == 0
    mantissa = found.to(torch.float8_e4m3fn).view(torch.uint8) & 1
    assert bool(even.all()) and not bool(mantissa.any())


@pytest.mark.parametrize("amax", [1.0, 0.37, 1000.0])
def test_amax_becomes_the_largest_value(amax):
    x = torch.linspace(-2 * amax, 2 * amax, 999)
    found = scaled_e4m3(x, torch.tensor(amax))
    assert float(found.max()) == pytest.approx(amax)
    relative = ((found - x) / x).abs()[(x.abs() <= amax) & (x.abs() > amax * 2**-13)]
    assert float(relative.max()) <= 2**-4 * 1.001


def test_what_is_not_there():
    with pytest.raises(UnsupportedFormatError, match="5 bits of exponent and 2 of mantissa") as caught:
        scaled_e4m3(torch.ones(1), None, 5, 2)
    assert isinstance(caught.value, NotImplementedError)
    with pytest.raises(QuantizerValueError, match="amax must be finite and not negative"):
        scaled_e4m3(torch.ones(1), torch.tensor(-1.0))
