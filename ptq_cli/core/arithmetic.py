"""The arithmetic of quantization, defined once in numpy.

``q = saturate(round_half_even(x / scale) + zero_point)`` and ``x' = (q - zero_point) * scale``, all in
float32, as ONNX's QuantizeLinear and DequantizeLinear (opset 13) say. Every other implementation
(the PyTorch quantizers, ONNX Runtime) is tested against this one bit for bit. Floats of few bits are rounded
as ``onnx.reference`` and ml_dtypes do, which tests compare on every float16.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import EllipsisType

import numpy as np
import numpy.typing as npt

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import FloatFormat, Granularity, IntegerFormat, NumberFormat, PerTensor
from ptq_cli.core.tensors import Array


def round_to_float(x: npt.ArrayLike, format: FloatFormat) -> npt.NDArray[np.float32]:
    """The nearest value of a float format, as a float32.

    Shapes: x: any; the result has the same shape.
    Edge case: Of two values that are equally near, the one with an even mantissa. What is beyond the largest
        value, infinities too, becomes the largest. A value below the smallest normal number is rounded to a
        multiple of the smallest subnormal one, and keeps its sign where that is 0. NaN stays NaN.
    Source: Micikevicius et al. 2022, "FP8 formats for deep learning", section 3; ONNX Cast with ``saturate =
        1``; OCP Microscaling Formats (MX) 1.0, section 5.3.3, for E2M1.

    Example:
        >>> from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN
        >>> round_to_float([0.3, 17.0, 500.0, 0.0009], FLOAT8_E4M3FN).tolist()
        [0.3125, 16.0, 448.0, 0.0]
        >>> round_to_float([0.25, 0.75, 2.5, 5.0, 100.0], FLOAT4_E2M1).tolist()
        [0.0, 1.0, 2.0, 4.0, 6.0]
    """
    bounded = np.clip(np.asarray(x, np.float32), format.qmin, format.qmax)
    # frexp gives a fraction from 1/2 to 1, so that the exponent of the leading bit is one less.
    _, exponent = np.frexp(bounded)
    spacing = np.maximum(exponent - 1, format.smallest_exponent) - format.mantissa_bits
    # By a power of two, so that only rint rounds.
    rounded = np.ldexp(np.rint(np.ldexp(bounded, -spacing)), spacing)
    return np.asarray(rounded, np.float32)


# An amax not above this counts as 0: with 16 bits its scale is no normal float32. How small values may be
# does not follow from their size: what they are multiplied with may be as large.
ZERO_AMAX = 2.0**-110

PART = 1 << 20  # Number of elements that are quantized at once.
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FixedGrid:
    """Scale and zero point that a kernel has built in, as that of a Sigmoid's result."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class QuantParameters:
    """Scale and zero point of a tensor, with the format and granularity they belong to.

    Shapes: scale, zero_point: ``granularity.scale_shape(tensor.shape)``.
    Units: scale: real units per integer step. (NVIDIA's code calls the reciprocal ``scale``.)
    """

    scale: FloatArray
    zero_point: npt.NDArray[np.int64]
    format: NumberFormat
    granularity: Granularity = field(default_factory=PerTensor)

    @property
    def integers(self) -> IntegerFormat:
        """The format, for what is known to be integers.

        Raises: TypeError: it is a float format.
        """
        if isinstance(self.format, FloatFormat):
            raise TypeError(f"{self.format.name} has no evenly spaced steps")
        return self.format


def scale_from_amax(amax: npt.ArrayLike, format: NumberFormat) -> FloatArray:
    """The symmetric scale, ``amax / qmax``.

    Shapes: amax: any; the result has the same shape.
    Edge case: An amax not above 2^-110 gives scale 1: the channel holds zeros, and quantizes to them.

    Raises: RecipeValueError: amax is negative, or not finite in float32.

    Source: NVIDIA pytorch-quantization, ``tensor_quant``; ONNX QuantizeLinear.

    Example:
        >>> from ptq_cli.core.formats import INT8, UINT8
        >>> scale_from_amax([1.27, 0.0], INT8).tolist()
        [0.009999999776482582, 1.0]
        >>> float(scale_from_amax(255.0, UINT8))
        1.0
    """
    values = np.asarray(amax, dtype=np.float64)
    # Written so that NaN fails too. An amax too large for float32 would become an infinite scale.
    if not np.all((values >= 0) & (values <= np.finfo(np.float32).max)):
        raise RecipeValueError(f"amax must be finite and not negative, got {np.ravel(values)[:4].tolist()}")
    scale: FloatArray = np.where(values <= ZERO_AMAX, 1.0, values / format.qmax).astype(np.float32)
    return scale


def parameters_from_range(low: float, high: float, format: IntegerFormat) -> QuantParameters:
    """The asymmetric parameters that cover ``[low, high]`` and represent 0 exactly.

    The range is first widened to include 0; then ``scale = (high - low) / (qmax - qmin)``, rounded towards
    zero in its last float32 bit so that the grid never reaches above ``high``: only then do runtimes see
    that a Clip before it is redundant.

    Edge case: A range not wider than 2^-110 gives scale 1 and the zero point of a real 0.

    Raises: RecipeValueError: the bounds are not finite or ``low > high``.

    Source: ONNX QuantizeLinear; Krishnamoorthi 2018, "Quantizing deep convolutional networks", section 2.1.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> p = parameters_from_range(0.0, 6.0, UINT8)
        >>> float(p.scale) * 255 <= 6.0, int(p.zero_point)
        (True, 0)
        >>> int(parameters_from_range(-1.0, 1.0, UINT8).zero_point)
        128
    """
    if not (np.isfinite(low) and np.isfinite(high)) or low > high:
        raise RecipeValueError(f"a range must be finite and ordered, got [{low}, {high}]")
    # Python floats: in float32 the width of [-3e38, 3e38] would be infinite.
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    steps = format.qmax - format.qmin
    if high - low <= ZERO_AMAX:
        return QuantParameters(np.asarray(1.0, np.float32), np.asarray(0, np.int64), format)
    scale = np.float32((high - low) / steps)
    if float(scale) * steps > high - low:
        scale = np.nextafter(scale, np.float32(0.0))
    scale = max(scale, np.finfo(np.float32).tiny)
    # round rounds half to even, as rint does, and on one number numpy's clip takes a hundred times as long.
    zero_point = min(max(round(format.qmin - low / float(scale)), format.qmin), format.qmax)
    return QuantParameters(np.asarray(scale, dtype=np.float32), np.asarray(zero_point, np.int64), format)


def quantize(x: npt.ArrayLike, parameters: QuantParameters) -> Array:
    """Quantize ``x`` to integers, or to floats of few bits, as ONNX's QuantizeLinear does.

    Shapes: x: any; the result has the same shape.
    Edge case: ±inf saturates. NaN has no integer, and raises an error (ONNX Runtime turns it into qmin).

    Raises: RecipeValueError: ``x`` holds NaN.

    Source: ONNX QuantizeLinear: opset 13 for integers, 19 for E4M3, 23 for E2M1; round half to even,
        saturate.

    Example:
        >>> from ptq_cli.core.formats import INT8
        >>> half = QuantParameters(np.float32(0.5).reshape(()), np.int64(0).reshape(()), INT8)
        >>> quantize([0.25, 0.75, -1e9], half).tolist()
        [0, 2, -128]
        >>> from ptq_cli.core.formats import FLOAT8_E4M3FN
        >>> eighth = QuantParameters(np.float32(0.125).reshape(()), np.int64(0).reshape(()), FLOAT8_E4M3FN)
        >>> quantize([0.26, -1e9], eighth).astype(np.float32).tolist()
        [2.0, -448.0]
    """
    array = np.asarray(x, dtype=np.float32)
    if np.isnan(array).any():
        raise RecipeValueError("NaN cannot be quantized")
    shape = parameters.granularity.broadcast_shape(array.shape)
    scale, zero_point = parameters.scale.reshape(shape), parameters.zero_point.reshape(shape)
    if array.size <= PART:
        return _quantize(array, scale, zero_point, parameters.format)
    # In parts, because the intermediate arrays take six times the memory of the array itself.
    integers: Array = np.empty(array.shape, parameters.format.storage)
    for part, own in _parts(array, scale):
        integers[part] = _quantize(array[part], scale[own], zero_point[own], parameters.format)
    return integers


def _parts(array: npt.NDArray[np.generic], scale: FloatArray) -> Iterator[tuple[slice, slice | EllipsisType]]:
    """Yield slices of rows with about ``PART`` elements, each with the matching slice of the scale."""
    apart = scale.ndim > 0 and len(scale) > 1  # each row has its own scale
    rows = max(1, PART * len(array) // array.size)
    for start in range(0, len(array), rows):
        part = slice(start, start + rows)
        yield part, part if apart else ...


def _quantize(
    array: FloatArray, scale: FloatArray, zero_point: npt.NDArray[np.int64], format: NumberFormat
) -> Array:
    with np.errstate(over="ignore"):
        rounded = np.asarray(array / scale)
    if isinstance(format, FloatFormat):
        return round_to_float(rounded, format).astype(format.storage)
    np.rint(rounded, out=rounded)
    low, high = format.qmin, format.qmax
    if not zero_point.any():  # float32 holds the ends exactly, and weights need no wider type on the way
        saturated: Array = np.clip(rounded, low, high, out=rounded).astype(format.storage)
        return saturated
    # Saturate before adding in integers: float32 would round zero_point + 2^24 and overflow int64.
    shifted = np.clip(rounded, low - zero_point, high - zero_point).astype(np.int64) + zero_point
    integers: Array = shifted.astype(format.storage)
    return integers


def dequantize(q: npt.ArrayLike, parameters: QuantParameters) -> FloatArray:
    """The real values of integers, as ONNX's DequantizeLinear does.

    Shapes: q: any; the result has the same.
    Edge case: A product beyond float32 is ±inf, as in ONNX Runtime.
    Source: ONNX DequantizeLinear, opset 13.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> parameters = QuantParameters(np.float32(0.5).reshape(()), np.int64(10).reshape(()), UINT8)
        >>> dequantize(np.array([10, 12], np.uint8), parameters).tolist()
        [0.0, 1.0]
    """
    integers = np.asarray(q)
    shape = parameters.granularity.broadcast_shape(integers.shape)
    scale, zero_point = parameters.scale.reshape(shape), parameters.zero_point.reshape(shape)
    if integers.size <= PART:
        return _dequantize(integers, scale, zero_point)
    result: FloatArray = np.empty(integers.shape, np.float32)
    for part, own in _parts(integers, scale):
        result[part] = _dequantize(integers[part], scale[own], zero_point[own])
    return result


def _dequantize(
    integers: npt.NDArray[np.generic], scale: FloatArray, zero_point: npt.NDArray[np.int64]
) -> FloatArray:
    if np.issubdtype(integers.dtype, np.integer):
        difference = (integers.astype(np.int64) - zero_point).astype(np.float32)
    else:  # A float format, whose zero point is always 0.
        difference = integers.astype(np.float32)
    with np.errstate(over="ignore"):
        result: FloatArray = difference * scale
    return result


def fake_quantize(x: npt.ArrayLike, parameters: QuantParameters) -> FloatArray:
    """Quantize and dequantize: the value that the integer model computes with.

    Shapes: x: any; the result has the same shape.
    Source: ONNX QuantizeLinear followed by DequantizeLinear.

    Example:
        >>> from ptq_cli.core.formats import INT8
        >>> fake_quantize([0.3], QuantParameters(np.float32(0.25).reshape(()), np.int64(0), INT8)).tolist()
        [0.25]
    """
    return dequantize(quantize(x, parameters), parameters)


LARGEST_HALF = float(np.finfo(np.float16).max)
TINIEST_HALF = float(np.finfo(np.float16).smallest_subnormal)


def to_half(array: Array) -> Array:
    """The nearest float16 of numbers, none of them infinite or 0 that was not so before.

    Shapes: array: any; the result has the same shape.

    Example:
        >>> to_half(np.float32([-3.4e38, 1e-12, 0.0, 0.1])).tolist()
        [-65504.0, 5.960464477539063e-08, 0.0, 0.0999755859375]
    """
    values = np.asarray(array, np.float32)
    finite = np.isfinite(values)
    bounded = np.where(finite, np.clip(values, -LARGEST_HALF, LARGEST_HALF), values)
    tiny = (bounded != 0) & (np.abs(bounded) < TINIEST_HALF)
    return np.where(tiny, np.copysign(np.float32(TINIEST_HALF), bounded), bounded).astype(np.float16)
