import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ptq_cli.core.arithmetic import (
    ZERO_AMAX,
    QuantParameters,
    dequantize,
    fake_quantize,
    parameters_from_range,
    quantize,
    round_to_float,
    scale_from_amax,
)
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import (
    FLOAT4_E2M1,
    FLOAT8_E4M3FN,
    INT8,
    INT8_NARROW,
    UINT8,
    IntegerFormat,
    PerAxis,
    PerTensor,
)
from tests.each_case import each_case

FLOAT32_MAX = float(np.finfo(np.float32).max)


def parameters(scale, zero_point=0, format=INT8, **options):
    return QuantParameters(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), format, **options)


class TestScaleFromAmax:
    @pytest.mark.parametrize("format", [INT8, INT8_NARROW])
    def test_signed_divides_by_the_largest_integer(self, format):
        assert scale_from_amax(np.float32(0.3), format) == np.float32(0.3) / np.float32(127)

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

    @each_case("high", np.random.default_rng(0).uniform(1e-3, 100, 50))
    def test_grid_never_reaches_above_the_upper_bound(self, high):
        found = parameters_from_range(0.0, high, UINT8)
        assert float(found.scale) * 255 <= high
        assert float(found.scale) * 255 >= high * (1 - 2**-22)

    @pytest.mark.parametrize("format", [INT8, UINT8])
    def test_an_empty_range_has_scale_1_and_represents_0(self, format):
        found = parameters_from_range(0.0, 2.0**-111, format)
        assert float(found.scale) == 1.0
        assert fake_quantize(0.0, found) == 0.0

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


class TestDequantize:
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


EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
NUMBERS = EVERY_HALF[~np.isnan(EVERY_HALF)]
FORMATS = pytest.mark.parametrize("format", [FLOAT8_E4M3FN, FLOAT4_E2M1], ids=lambda item: item.name)


def _reference(values, format, opset):
    zero = helper.make_tensor("zero", TensorProto.DataType.Value(format.name.upper()), [], [0.0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy"]
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], [one, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, {"x": values})[0]


@FORMATS
def test_every_float16_is_rounded_as_by_onnx_and_ml_dtypes(format):
    found = round_to_float(NUMBERS, format)
    # ml_dtypes makes NaN of what E4M3 cannot hold, where ONNX saturates.
    bounded = np.clip(NUMBERS, format.qmin, format.qmax)
    own = bounded.astype(format.storage).astype(np.float32)
    assert np.array_equal(found.view(np.uint32), own.view(np.uint32))
    # Of -0 alone, ONNX's evaluator loses the sign in E2M1.
    finite = NUMBERS[np.isfinite(NUMBERS) & (NUMBERS != 0)]
    reference = _reference(finite, format, 23)
    assert np.array_equal(round_to_float(finite, format).view(np.uint32), reference.view(np.uint32))


@FORMATS
def test_every_value_of_a_format_is_kept(format):
    codes = np.arange(1 << format.bits, dtype=np.uint8)
    values = codes.view(format.storage) if format.bits == 8 else codes.astype(np.uint8).view(format.storage)
    values = values.astype(np.float32)
    values = values[~np.isnan(values)]
    assert np.array_equal(round_to_float(values, format), values)
    assert values.max() == format.qmax and ml_dtypes.finfo(format.storage).max == format.qmax


@FORMATS
def test_what_is_beyond_saturates_and_nan_stays(format):
    found = round_to_float(np.float32([np.inf, -np.inf, 1e30, np.nan, -0.0]), format)
    assert found[:3].tolist() == [format.qmax, format.qmin, format.qmax]
    assert np.isnan(found[3]) and np.signbit(found[4])


@each_case(
    "bits, signed, narrow, qmin, qmax",
    [
        (2, True, False, -2, 1),
        (2, True, True, -1, 1),
        (2, False, False, 0, 3),
        (3, True, True, -3, 3),
        (4, True, False, -8, 7),
        (4, False, False, 0, 15),
        (8, True, False, -128, 127),
        (8, True, True, -127, 127),
        (8, False, False, 0, 255),
        (16, True, False, -32768, 32767),
        (16, False, False, 0, 65535),
    ],
)
def test_range(bits, signed, narrow, qmin, qmax):
    format = IntegerFormat(bits, signed, narrow)
    assert (format.qmin, format.qmax) == (qmin, qmax)


@each_case("bits", [-1, 0, 1, 17])
def test_refuses_other_bits(bits):
    with pytest.raises(RecipeValueError, match=rf"{bits} bits is outside 2 to 16"):
        IntegerFormat(bits, signed=True)


def test_refuses_narrow_unsigned():
    with pytest.raises(RecipeValueError, match="unsigned format has no narrow range"):
        IntegerFormat(8, signed=False, narrow_range=True)


@each_case(
    "axis, scale, broadcast, reduced",
    [
        (0, (4,), (4, 1, 1), (1, 2)),
        (1, (3,), (1, 3, 1), (0, 2)),
        (2, (2,), (1, 1, 2), (0, 1)),
        (-1, (2,), (1, 1, 2), (0, 1)),
        (-3, (4,), (4, 1, 1), (1, 2)),
    ],
)
def test_per_axis(axis, scale, broadcast, reduced):
    shape = (4, 3, 2)
    assert PerAxis(axis).scale_shape(shape) == scale
    assert PerAxis(axis).broadcast_shape(shape) == broadcast
    assert PerAxis(axis).reduced_axes(shape) == reduced


@each_case("method", ["scale_shape", "broadcast_shape", "reduced_axes"])
@each_case("axis, shape", [(2, (4, 3)), (-3, (4, 3)), (0, ())])
def test_refuses_an_axis_that_is_not_there(method, axis, shape):
    with pytest.raises(RecipeValueError, match=rf"axis {axis} is outside a tensor of shape"):
        getattr(PerAxis(axis), method)(shape)
