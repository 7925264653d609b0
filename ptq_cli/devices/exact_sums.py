"""What an integer kernel has to give, with sums that no processor can get wrong.

Sums are those of the integers, of any size. They become floats, and integers again, by the operations of ONNX
Runtime: one factor in float32 for each channel, and rounding to even.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from numpy.lib.stride_tricks import sliding_window_view

Numbers = npt.NDArray[Any]

SUMMING = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QGemm", "QLinearConv", "QLinearMatMul")
"""The operators that add products of integers, and have nothing else to round than these sums."""
EXACT, A_STEP = np.array(0.0), np.array(1.0)
A_QUARTER = 0.25
FLOAT_ROUNDING = 2.0**-21  # relative: what a scaled sum and its bias lose in float32, in any order


@dataclass(frozen=True)
class Expected:
    """What a kernel has to give.

    Attributes:
        value: its output.
        tolerance: the largest difference that passes, for each value or for all.
    """

    value: Numbers
    tolerance: Numbers

    def is_met_by(self, found: Numbers) -> bool:
        """Tell whether each value is within the tolerance; never where one is NaN."""
        if found.shape != self.value.shape or found.dtype != self.value.dtype:
            return False
        return bool(np.all(np.abs(found.astype(np.float64) - self.value) <= self.tolerance))


def expect(node: onnx.NodeProto, inputs: Sequence[Numbers | None]) -> Expected:
    """Compute a kernel that adds products: integers have to be the same, and floats those of the same sum.

    Example:
        >>> node = onnx.helper.make_node("MatMulInteger", ["a", "b"], ["y"])
        >>> a, b = np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)
        >>> expect(node, [a, b]).value.tolist()  # Two products in 16 bits end at 32767.
        [[64770]]
    """
    given: list[Any] = [*inputs, *[None] * 9]
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    scale, zero, bias = None, None, None
    match node.op_type:
        case "ConvInteger":
            x, w, zx, zw = given[:4]
            sums = _convolve(_centered(x, zx), _centered(w, zw), attributes)
        case "MatMulInteger":
            a, b, za, zb = given[:4]
            sums = _centered(a, za, axis=-2) @ _centered(b, zb, axis=-1)
        case "MatMulIntegerToFloat":
            a, b, sa, sb, za, zb, bias = given[:7]
            sums, scale = _centered(a, za, axis=-2) @ _centered(b, zb, axis=-1), sa * sb
        case "QLinearMatMul":
            a, sa, za, b, sb, zb, sy, zero = given[:8]
            sums, scale = _centered(a, za, axis=-2) @ _centered(b, zb, axis=-1), sa * sb / sy
        case "QGemm":
            a, sa, za, b, sb, zb, added, sy, zero = given[:9]
            a, b = _centered(a, za), _centered(b, zb, axis=0 if attributes.get("transB") else 1)
            sums = (a.T if attributes.get("transA") else a) @ (b.T if attributes.get("transB") else b)
            sums = sums if added is None else sums + added
            scale = np.float32(attributes.get("alpha", 1.0)) * sa * sb
            scale = scale if sy is None else scale / sy
        case "QLinearConv":
            x, sx, zx, w, sw, zw, sy, zero, added = given[:9]
            channels = (-1, *[1] * (x.ndim - 2))
            sums = _convolve(_centered(x, zx), _centered(w, zw), attributes)
            sums = sums if added is None else sums + added.reshape(channels)
            scale = np.reshape(sx * sw / sy, channels)
        case other:
            raise ValueError(f"{other} is not an operator that adds products")
    if scale is None:
        return Expected(sums.astype(np.int32), EXACT)
    return _floats(sums, scale, bias) if zero is None else _integers(sums, scale, zero)


def _centered(integers: Numbers, zero: Numbers | None, axis: int = 0) -> Numbers:
    """Integers less their zero point, as float64, whose sums below 2**53 are those of int64."""
    values = integers.astype(np.float64)
    if zero is None:
        return values
    shape = [1] * values.ndim
    if zero.size > 1:
        shape[axis] = zero.size
    return values - zero.astype(np.float64).reshape(shape)


def _convolve(x: Numbers, w: Numbers, attributes: Mapping[str, Any]) -> Numbers:
    """The sums of a convolution of any number of dimensions."""
    rank, sizes = x.ndim - 2, np.array(w.shape[2:])
    strides, dilations = (np.array(attributes.get(name, [1] * rank)) for name in ("strides", "dilations"))
    extents = (sizes - 1) * dilations + 1
    padding = _padding(np.array(x.shape[2:]), extents, strides, attributes)
    windows = sliding_window_view(
        np.pad(x, [(0, 0), (0, 0), *padding]), tuple(extents), axis=tuple(range(2, rank + 2))
    )
    places = tuple(slice(None, None, step) for step in (*strides, *dilations))
    windows = windows[(slice(None), slice(None), *places)]
    axes = [1, *range(rank + 2, 2 * rank + 2)]
    groups = attributes.get("group", 1)
    sums = [
        np.tensordot(part, filters, axes=(axes, range(1, rank + 2)))
        for part, filters in zip(np.split(windows, groups, axis=1), np.split(w, groups), strict=True)
    ]
    return np.moveaxis(np.concatenate(sums, axis=-1), -1, 1)


def _padding(
    sizes: Numbers, extents: Numbers, strides: Numbers, attributes: Mapping[str, Any]
) -> list[tuple[int, int]]:
    mode, rank = attributes.get("auto_pad", b"NOTSET"), len(sizes)
    if mode in (b"NOTSET", b"VALID"):
        pads = attributes.get("pads", [0] * 2 * rank)
        return list(zip(pads[:rank], pads[rank:], strict=True))
    total = np.maximum((-(-sizes // strides) - 1) * strides + extents - sizes, 0)
    less = total // 2 if mode == b"SAME_UPPER" else total - total // 2
    return list(zip(less.tolist(), (total - less).tolist(), strict=True))


def _integers(sums: Numbers, scale: Numbers, zero: Numbers) -> Expected:
    """Sums as integers of the result's grid."""
    limits, offset = np.iinfo(zero.dtype), int(zero)
    steps = np.clip(sums.astype(np.float32) * scale, limits.min - offset, limits.max - offset)
    return Expected((np.rint(steps) + offset).astype(zero.dtype), EXACT)


def _floats(sums: Numbers, scale: Numbers, bias: Numbers | None) -> Expected:
    """Scaled sums; a float passes that is nearer to its sum than to the next one."""
    values = sums.astype(np.float32) * scale
    result = values if bias is None else values + bias
    rounded = FLOAT_ROUNDING * (np.abs(values) + (0 if bias is None else np.abs(bias)))
    return Expected(result, A_QUARTER * np.abs(scale) + rounded)
