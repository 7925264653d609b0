import numpy as np
import pytest
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize, quantize
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
