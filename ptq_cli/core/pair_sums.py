"""Weights whose products no kernel can add up wrongly: what two of them that are added in 16 bits may be.

Kernels for x86 without VNNI multiply unsigned by signed bytes with ``vpmaddubsw``, which adds the products
of two neighbors along K in 16 bits, and saturates. With activations up to 255 a sum is exact where both
weights have one sign only if their magnitudes add up to no more than 128; weights of opposite signs take
from each other.

What K is depends on the operator, and which of its elements are neighbors on the kernel: an *order* names
the axes of the weight that K runs over, the slowest first. Pairs are (2j, 2j + 1) along it; a last one
without a mate stands alone.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.core.formats import Granularity
from ptq_cli.core.tensors import Array

Order = tuple[int, ...]
# How pairs of channels go on from one position of a filter to the next.
ACROSS, RESTARTED = "across", "restart"
LARGEST_SUM = 128  # Two magnitudes: 255 * 128 = 32,640 is the last multiple of 255 below 2^15.
_PART = 1 << 22  # Elements of a weight that are looked at at once.


@dataclass(frozen=True)
class PairRule:
    """Which weights of a tensor meet in a sum of 16 bits, and how large they may be together.

    Attributes:
        largest: sum of the magnitudes of two weights of one sign.
        orders: in which K is read. Where there are several, one kernel reads the one and another the other.
    """

    largest: int
    orders: tuple[Order, ...]


def conv_orders(
    shape: Sequence[int], groups: int, kinds: Collection[str] = (ACROSS, RESTARTED)
) -> tuple[Order, ...]:
    """Orders in which integer kernels read the weight of a Conv.

    K runs over the positions of the kernel, and at each over the channels of a group. ONNX Runtime's pairs
    run on from one position to the next (``ACROSS``), and OpenVINO's start again at each (``RESTARTED``);
    with an even number of channels these are the same.

    Shapes: shape: (M, C / groups, …).
    Edge case: With one channel in and out of each group nothing is added in 16 bits: the kernels of depthwise
        convolutions are exact.

    Example:
        >>> conv_orders((8, 4, 3, 3), 1), conv_orders((8, 3, 3, 3), 1), conv_orders((8, 1, 3, 3), 8)
        (((2, 3, 1),), ((2, 3, 1), (1,)), ())
    """
    channels, spatial = shape[1], range(2, len(shape))
    if channels == 1 and shape[0] == groups:
        return ()
    across: tuple[Order, ...] = ((*spatial, 1),) if ACROSS in kinds else ()
    is_same = channels % 2 == 0 or all(shape[axis] == 1 for axis in spatial)
    # A single channel has no other one at its position.
    return across if channels == 1 or RESTARTED not in kinds or (across and is_same) else (*across, (1,))


def conv_transpose_orders(groups: int, kinds: Collection[str] = (ACROSS, RESTARTED)) -> tuple[Order, ...]:
    """Orders in which integer kernels read the weight of a ConvTranspose, (C, M / groups, …).

    OpenVINO alone has one. Its K is the channels at a position; with groups it was not seen to saturate.

    Example:
        >>> conv_transpose_orders(1), conv_transpose_orders(2)
        (((0,),), ())
    """
    return ((0,),) if groups == 1 and RESTARTED in kinds else ()


def pair_sums(weight: Array, order: Order) -> Iterator[tuple[slice, Array]]:
    """Yield the sums of the pairs, some of the other indices at a time.

    Nobody has to ask for signs: weights of opposite signs add up to less than the larger one, which by itself
    is within any limit.

    Shapes: weight: any; each sum (indices beside K, pairs). The slice is of the indices beside K, in the
        order of their axes.
    """
    rows = _rows(weight, order)
    dtype = np.float64 if weight.dtype.kind == "f" else np.int16  # In which a sum of two is exact.
    step = max(1, _PART // max(rows.shape[1], 1))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        yield slice(first, first + len(part)), np.add(*_mates(part), dtype=dtype)


def widened_for_pairs(
    scale: npt.NDArray[np.float32], weight: Array, granularity: Granularity, rule: PairRule, end: float
) -> npt.NDArray[np.float32]:
    """Scales widened for the worst pair of each channel.

    Rounding half to even exceeds no sum that the real numbers keep: 63.5 + 64.5 gives 64 + 64.

    A value beyond ``end``, the largest integer, is cut off, and counts as that much.

    Shapes: weight: any; scale, and the result: ``granularity.scale_shape(weight.shape)``.
    Edge case: A single weight (K = 1) has no mate, and its scale stays.

    Example:
        >>> from ptq_cli.core.formats import PerAxis
        >>> weight = np.float32([[127, 65, 1], [127, -127, 127]])
        >>> rule = PairRule(128, ((1,),))
        >>> widened_for_pairs(np.ones(2, np.float32), weight, PerAxis(0), rule, 127.0).tolist()
        [1.5, 1.0]
    """
    spread = np.asarray(scale, np.float32).reshape(granularity.broadcast_shape(weight.shape))
    worst = np.ones(spread.shape)
    cut = np.clip(np.asarray(weight, np.float32) / spread, -end, end)
    for order in rule.orders:
        beside = [axis for axis in range(weight.ndim) if axis not in order]
        sums = np.zeros(int(np.prod([weight.shape[axis] for axis in beside], dtype=np.int64)))
        for part, found in pair_sums(cut, order):
            sums[part] = np.abs(found, out=found).max(axis=1, initial=0.0)
        kept = [1 if axis in order else size for axis, size in enumerate(weight.shape)]
        reduced = tuple(axis for axis in range(weight.ndim) if spread.ndim == 0 or spread.shape[axis] == 1)
        largest = sums.reshape(kept).max(axis=reduced, keepdims=True)
        worst = np.maximum(worst, largest.reshape(spread.shape) / rule.largest)
    widened: npt.NDArray[np.float32] = (spread * worst).astype(np.float32).reshape(np.shape(scale))
    return widened


def within_pairs(integers: Array, rule: PairRule) -> Array:
    """Integers of which no pair exceeds its sum: the larger one of a pair that does gives way.

    After ``widened_for_pairs`` few pairs do, by a step: where float32 rounded a scale down, where a value
    was cut off, or where a weight was rounded away from the nearest integer.

    Shapes: integers: any; the result has the same.

    Example:
        >>> within_pairs(np.int8([[64, 65, -64, -64]]), PairRule(128, ((1,),))).tolist()
        [[64, 64, -64, -64]]
    """
    for order in rule.orders:
        if not exceeds_pairs(integers, PairRule(rule.largest, (order,))):
            continue
        rows = _rows(integers, order).astype(np.int64)
        one, other = _mates(rows)  # They are views: what is taken from them is taken from the rows.
        excess = (np.abs(one + other) - rule.largest).clip(min=0)
        first_gives_way = np.abs(one) > np.abs(other)
        one -= np.where(first_gives_way, np.sign(one) * excess, 0)
        other -= np.where(first_gives_way, 0, np.sign(other) * excess)
        integers = _from_rows(rows, order, integers.shape).astype(integers.dtype)
    return integers


def exceeds_pairs(integers: Array, rule: PairRule) -> bool:
    """Whether two neighbors of one sign add up to more than a rule allows.

    Example:
        >>> exceeds_pairs(np.int8([[64, 65]]), PairRule(128, ((1,),)))
        True
    """
    return any(
        found.max(initial=0) > rule.largest or found.min(initial=0) < -rule.largest
        for order in rule.orders
        for _, found in pair_sums(integers, order)
    )


def mates_along(rule: PairRule, shape: Sequence[int]) -> npt.NDArray[np.int64]:
    """Partners of each element of a weight, as indices into the flat weight.

    Shapes: the result (size, orders): one mate for each order, or -1.

    Example:
        >>> mates_along(PairRule(128, ((1,),)), (1, 3)).tolist()
        [[1], [0], [-1]]
    """
    size = int(np.prod(shape, dtype=np.int64))
    mates = np.full((size, len(rule.orders)), -1, np.int64)
    for place, order in enumerate(rule.orders):
        places = np.arange(size, dtype=np.int64).reshape(shape)
        one, other = _mates(_rows(places, order))
        mates[one, place], mates[other, place] = other, one
    return mates


@dataclass(frozen=True)
class UnsafePairs:
    """How much of a weight can saturate.

    Attributes:
        pairs, of_pairs: how many pairs exceed their sum, of how many.
        channels, of_channels: how many output channels have such a pair, of how many.
    """

    pairs: int
    of_pairs: int
    channels: int
    of_channels: int


def unsafe_pairs(integers: Array, rule: PairRule, axis: int) -> UnsafePairs:
    """How many pairs of a weight exceed their sum in the order that is worst.

    Its zero point is 0, and ``axis`` that of its output channels.

    Shapes: integers: any.
    Edge case: Without an order nothing can saturate.

    Example:
        >>> unsafe_pairs(np.int8([[127, 127, 1], [1, 2, 3]]), PairRule(128, ((1,),)), 0)
        UnsafePairs(pairs=1, of_pairs=2, channels=1, of_channels=2)
    """
    worst = UnsafePairs(0, 0, 0, integers.shape[axis])
    for order in rule.orders:
        beside = [index for index in range(integers.ndim) if index not in order]
        sizes = [integers.shape[index] for index in beside]
        count, total = np.zeros(int(np.prod(sizes, dtype=np.int64)), np.int64), 0
        for part, found in pair_sums(integers, order):
            count[part] = np.count_nonzero(np.abs(found) > rule.largest, axis=1)
            total += found.size
        others = tuple(place for place, index in enumerate(beside) if index != axis)
        by_channel = count.reshape(sizes).sum(axis=others)
        found_here = UnsafePairs(
            int(count.sum()), total, int(np.count_nonzero(by_channel)), integers.shape[axis]
        )
        if found_here.pairs >= worst.pairs:
            worst = found_here
    return worst


def _rows(weight: Array, order: Order) -> Array:
    """A weight with K behind all else.

    Shapes: (indices beside K, K).
    """
    beside = [axis for axis in range(weight.ndim) if axis not in order]
    size = int(np.prod([weight.shape[axis] for axis in order], dtype=np.int64))
    return weight.transpose([*beside, *order]).reshape(-1, size)


def _mates(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The first and the second of each pair; a last one without a mate is left out.

    Shapes: rows: (R, K); both (R, K // 2).
    """
    even = rows.shape[1] // 2 * 2
    return rows[:, 0:even:2], rows[:, 1:even:2]


def _from_rows(rows: Array, order: Order, shape: Sequence[int]) -> Array:
    beside = [axis for axis in range(len(shape)) if axis not in order]
    axes = [*beside, *order]
    return rows.reshape([shape[axis] for axis in axes]).transpose(np.argsort(axes))
