import numpy as np
import pytest

from ptq_cli.core.arithmetic import (
    ZERO_AMAX,
    QuantParameters,
    dequantize,
    fake_quantize,
    parameters_from_range,
    quantize,
    scale_from_amax,
)
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import INT8, INT8_NARROW, UINT8, IntegerFormat, PerAxis, PerTensor
from tests.each_case import each_case

FLOAT32_MAX = float(np.finfo(np.float32).max)


def parameters(scale, zero_point=0, format=INT8, **options):
    return QuantParameters(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), format, **options)


class TestScaleFromAmax:
    @pytest.mark.parametrize("format", [INT8, INT8_NARROW])
    def test_signed_divides_by_the_largest_integer(self, format):
        assert scale_from_amax(np.float32(0.3), format) == np.float32(0.3) / np.float32(127)

    def test_unsigned_divides_by_255(self):
        assert scale_from_amax(np.float32(6.0), UINT8) == np.float32(6.0) / np.float32(255)

    def test_shape_and_dtype(self):
        scale = scale_from_amax(np.ones((2, 3)), INT8)
        assert (scale.shape, scale.dtype) == ((2, 3), np.float32)
        assert scale_from_amax(1.0, INT8).shape == ()

    def test_threshold_of_a_zero_channel(self):
        above = np.nextafter(np.float32(ZERO_AMAX), np.float32(1))
        assert scale_from_amax([0.0, ZERO_AMAX / 2, ZERO_AMAX], INT8).tolist() == [1.0, 1.0, 1.0]
        assert scale_from_amax(above, INT8) == above / np.float32(127)

    @each_case("amax", [-1.0, np.nan, np.inf, -np.inf, 1e39, [1.0, -1e-9]])
    def test_refuses(self, amax):
        with pytest.raises(RecipeValueError, match="amax must be finite and not negative"):
            scale_from_amax(amax, INT8)


class TestParametersFromRange:
    @each_case("low, high, zero_point", [(0.0, 6.0, 0), (-6.0, 0.0, 255), (-1.0, 1.0, 128), (2.0, 6.0, 0)])
    def test_zero_point(self, low, high, zero_point):
        assert int(parameters_from_range(low, high, UINT8).zero_point) == zero_point

    def test_signed_zero_point_of_a_positive_range_is_the_minimum(self):
        assert int(parameters_from_range(0.0, 6.0, INT8).zero_point) == -128

    @each_case("high", np.random.default_rng(0).uniform(1e-3, 100, 50))
    def test_grid_never_reaches_above_the_upper_bound(self, high):
        found = parameters_from_range(0.0, high, UINT8)
        assert float(found.scale) * 255 <= high
        assert float(found.scale) * 255 >= high * (1 - 2**-22)

    @pytest.mark.parametrize("format", [INT8, UINT8])
    def test_an_empty_range_has_scale_1_and_represents_0(self, format):
        found = parameters_from_range(0.0, 2.0**-25, format)
        assert float(found.scale) == 1.0
        assert fake_quantize(0.0, found) == 0.0

    def test_zero_is_always_exact(self):
        for low, high in np.random.default_rng(1).normal(size=(50, 2)):
            found = parameters_from_range(min(low, high), max(low, high), UINT8)
            assert fake_quantize(0.0, found) == 0.0

    def test_widest_range_of_float32_has_a_finite_scale(self):
        found = parameters_from_range(np.float32(-FLOAT32_MAX), np.float32(FLOAT32_MAX), UINT8)
        assert np.isfinite(found.scale)

    @pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (np.nan, 1.0), (0.0, np.inf)])
    def test_refuses(self, low, high):
        with pytest.raises(RecipeValueError, match="a range must be finite and ordered"):
            parameters_from_range(low, high, UINT8)


class TestQuantize:
    def test_halves_go_to_even(self):
        found = quantize([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], parameters(1.0))
        assert found.tolist() == [0, 2, 2, 0, -2, -2]

    @each_case("format, zero_point", [(INT8, -128), (INT8, 0), (INT8_NARROW, 0), (UINT8, 0), (UINT8, 255)])
    def test_saturates_without_wrapping(self, format, zero_point):
        huge = np.array([np.inf, FLOAT32_MAX, 2.0**31, -(2.0**31), -FLOAT32_MAX, -np.inf])
        found = quantize(huge, parameters(1e-3, zero_point, format))
        assert found.tolist() == [format.qmax] * 3 + [format.qmin] * 3
        assert found.dtype == format.storage

    def test_divides_rather_than_multiplies_by_the_reciprocal(self):
        scale = np.float32(0.03)
        ties = (np.arange(-127, 127, dtype=np.float32) + np.float32(0.5)) * scale
        reciprocal = np.clip(np.rint(ties * (np.float32(1) / scale)), -128, 127)
        assert (quantize(ties, parameters(scale)) != reciprocal).any()

    def test_per_axis_uses_each_scale_and_zero_point(self):
        found = quantize(np.full((2, 3), 1.0), parameters([1.0, 0.5], [0, 10], UINT8, granularity=PerAxis(0)))
        assert found.tolist() == [[1, 1, 1], [12, 12, 12]]

    def test_refuses_nan(self):
        with pytest.raises(RecipeValueError, match="NaN cannot be quantized"):
            quantize([1.0, np.nan], parameters(1.0))

    def test_empty(self):
        assert quantize(np.zeros((0, 3)), parameters(1.0)).shape == (0, 3)


class TestDequantize:
    def test_minus_zero_becomes_zero(self):
        assert not np.signbit(fake_quantize(-0.0, parameters(1.0)))

    def test_overflow_is_infinite_without_a_warning(self):
        found = dequantize(np.array([-128, 127]), parameters(FLOAT32_MAX / 100))
        assert found.tolist() == [-np.inf, np.inf]

    @each_case("bits", range(2, 17))
    @each_case("signed", [True, False])
    def test_every_integer_survives_a_round_trip(self, bits, signed):
        format = IntegerFormat(bits, signed)
        integers = np.arange(format.qmin, format.qmax + 1)
        for scale in (0.1, 1 / 3, 1e-30):
            found = parameters(scale, format.qmin + 1, format)
            np.testing.assert_array_equal(quantize(dequantize(integers, found), found), integers)


SHAPES = {
    "per tensor": ((7, 3, 5), PerTensor()),
    "rows": ((7, 3, 5), PerAxis(0)),
    "columns": ((7, 3, 5), PerAxis(2)),
    "a vector": ((35,), PerAxis(0)),
    "one row": ((1, 35), PerAxis(0)),
}


@each_case("shape, granularity", SHAPES.values(), ids=SHAPES.keys())
def test_in_parts_the_same_bits_come_out(shape, granularity, monkeypatch):
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    scales = granularity.scale_shape(shape)
    own = QuantParameters(
        random.uniform(0.01, 0.1, scales).astype(np.float32),
        random.integers(-9, 9, scales),
        INT8,
        granularity,
    )
    whole = quantize(x, own)
    restored = dequantize(whole, own)
    for part in (1, 10, 16):
        monkeypatch.setattr("ptq_cli.core.arithmetic.PART", part)
        found = quantize(x, own)
        assert found.dtype == whole.dtype
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(dequantize(found, own), restored)
