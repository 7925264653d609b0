"""The counting loop: one pass, no allocation, in a table that the first-level cache holds.

What is kept of a tensor is thinned to what a decision can see (``bit_histogram``): its largest octave T has
2048 bins, the one below 1024, and so on down to 8 in octave T - 8. All of these are equally wide. So their
bin is a product, cut to an integer: |x| * 2^(11 - T) lies between 8 and 4096, and the product is exact, as
the factor is a power of two. Octaves below T - 8 have 8 bins each; there the bin is the top of the float's
own bits, as it is by definition everywhere. Zeros have slots of their own.

Eleven bits in octave T, because a bin is then never wider than a bin of the 2048-bin linear histogram that
the entropy and mse methods are defined on: in [2^T, 2^(T+1)) a bin is 2^T / 2048 wide, and the linear one
max / 2048 >= 2^T / 2048. With fewer bits the amax that those methods choose would be blurred by the counting.

A piece of a tensor is passed over three times while it is in the first-level cache: its range is found, in
the integers that order as the floats do; its slots are computed, 16 at a time; and they are counted. The
first two are vectors' work and cost a third of the last.
"""

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import numpy as np
import numpy.typing as npt

# Functions that numba compiles: it is imported with the first call, since most commands count nothing.


_LOCK = threading.RLock()


class _Compiled:
    """A function that is handed to numba when it is first called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._dispatcher: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._dispatcher or self.dispatcher())(*arguments)

    def dispatcher(self) -> Callable[..., Any]:
        """Return what numba made of the function."""
        with _LOCK:
            if self._dispatcher is None:
                self._dispatcher = _compile(self._function)
        return self._dispatcher


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled by numba when it is first called, and kept on disk where that is possible.

    It may call others that are compiled, of its own module or imported by name.

    Edge case:
        Where neither the package's folder nor the user's cache can be written, as in a read-only container,
        each process compiles for itself.

    Example:
        >>> @compiled
        ... def double(x):
        ...     return x + x
        >>> double(21)
        42
    """
    return _Compiled(function)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    from numba import njit

    # Numba looks up what the function calls among the globals, and has to find its own there.
    names = function.__globals__
    for name in function.__code__.co_names:
        if isinstance(called := names.get(name), _Compiled):
            names[name] = called.dispatcher()
    try:
        result: Callable[..., Any] = njit(nogil=True, cache=True)(function)
    except RuntimeError:
        result = njit(nogil=True)(function)
    return result


MANTISSA_BITS = 11
FLOAT_MANTISSA_BITS = 23
LINEAR_BINS = 1 << 12
"""Of each sign; those below 8 stay empty."""
COARSE_BINS = 1 << 12
"""Keyed by the sign, the exponent and 3 bits of the mantissa."""
ZERO_SLOTS = 16
"""Zeros go round these: one slot hit again and again would wait for its own last increment."""
COARSE_START = 2 * LINEAR_BINS
ZERO_START = COARSE_START + COARSE_BINS
SLOTS = ZERO_START + ZERO_SLOTS


@compiled
def find_range(bits: npt.NDArray[np.int32]) -> tuple[int, int]:  # pragma: no cover - compiled
    """Return the smallest and the largest of float32 values, given as their bits, as ordered integers.

    The floats order as their bits do when those of negative numbers are turned round. NaN lies outside the
    infinities then, so that the range also tells whether all values are finite.

    Shapes:
        bits: (N,).
    """
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for index in range(bits.size):
        value = bits[index]
        # Numba makes 64 bits of any two integers. Cut at once, a vector holds twice as many of them.
        key = np.int32(value ^ ((value >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        low = np.int32(min(low, key))
        high = np.int32(max(high, key))
    return int(low), int(high)


@compiled
def find_ranges(
    memory: npt.NDArray[np.int32], spans: npt.NDArray[np.int64], ranges: npt.NDArray[np.int32]
) -> None:  # pragma: no cover - compiled
    """Write the range of each of several arrays that lie in one piece of memory, as ``find_range`` tells it.

    Shapes:
        memory: (M,). spans: (N, 2), where an array begins and ends. ranges: (N, 2).
    """
    for index in range(spans.shape[0]):
        low, high = find_range(memory[spans[index, 0] : spans[index, 1]])
        ranges[index, 0], ranges[index, 1] = low, high


@compiled
def count_values(
    bits: npt.NDArray[np.uint32], table: npt.NDArray[np.uint32], top: int, end: int, step: int
) -> tuple[int, int, int]:  # pragma: no cover - compiled
    """Count float32 values, given as their bits, as far as octave ``top`` has bins for them.

    Shapes:
        bits: (N,). table: (12304,). top: the biased exponent of the largest octave, at least 12. end: how
        many values are counted, from the first on. step: 1 adds, -1 takes away what was added.

    Returns:
        How many were counted, which is where a piece begins that has a larger octave, NaN or infinity; and
        their range, as ``find_range`` does.
    """
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    scale = np.float32(2.0 ** (138 - top))
    small = np.uint32((top - 8) << 23)
    slots = np.empty(1 << 10, np.uint16)  # With 1024 values, 6 KB.
    done = 0
    while done < end:
        piece = bits[done : min(done + (1 << 10), end)]
        least, most = find_range(piece.view(np.int32))
        if most >= (top + 1) << 23 or least < -((top + 1) << 23):
            break
        low, high = min(low, np.int32(least)), max(high, np.int32(most))
        find_slots(piece, piece.view(np.float32), slots, scale, small)
        count_slots(slots[: piece.size], table, np.uint32(step))
        done += piece.size
    return done, int(low), int(high)


@compiled
def count_arrays(
    memory: npt.NDArray[np.uint32],
    spans: npt.NDArray[np.int64],
    tables: npt.NDArray[np.uint32],
    tops: npt.NDArray[np.int64],
    counted: npt.NDArray[np.int64],
) -> None:  # pragma: no cover - compiled
    """Count several arrays that lie in one piece of memory, each in its table, as ``count_values`` does.

    Shapes:
        memory: (M,). spans: (N, 2), where an array begins and ends. tables: (T, 12304). tops: (N, 2), the
        row of an array's table, and its largest octave; where that is 0, nothing is counted. counted: (N, 3),
        what ``count_values`` returns for each.
    """
    for index in range(spans.shape[0]):
        row, top = tops[index]
        done, low, high = 0, 0x7FFFFFFF, -0x80000000
        if top:
            bits = memory[spans[index, 0] : spans[index, 1]]
            done, low, high = count_values(bits, tables[row], top, bits.size, 1)
        counted[index, 0], counted[index, 1], counted[index, 2] = done, low, high


@compiled
def find_slots(
    bits: npt.NDArray[np.uint32],
    values: npt.NDArray[np.float32],
    slots: npt.NDArray[np.uint16],
    scale: np.float32,
    small: np.uint32,
) -> None:  # pragma: no cover - compiled
    """Write each value's slot.

    Shapes:
        bits, values: (N,), the same ones. slots: at least (N,).
    """
    for index in range(bits.size):
        magnitude = bits[index] & np.uint32(0x7FFFFFFF)
        sign = np.int32(bits[index] >> np.uint32(31))
        slot = np.int32(abs(values[index]) * scale) | (sign << np.int32(12))
        coarse = np.int32(1 << 13) + np.int32(bits[index] >> np.uint32(20))
        slot = coarse if magnitude < small else slot
        slot = np.int32(3 << 12) + np.int32(index & 15) if magnitude == np.uint32(0) else slot
        slots[index] = np.uint16(slot)


@compiled
def count_slots(
    slots: npt.NDArray[np.uint16], table: npt.NDArray[np.uint32], step: np.uint32
) -> None:  # pragma: no cover - compiled
    """Add ``step`` to each slot, four at a time: so the processor has four additions under way.

    Shapes:
        slots: (N,). table: as above.
    """
    whole = slots.size - slots.size % 4
    for index in range(0, whole, 4):
        one, two, three, four = slots[index], slots[index + 1], slots[index + 2], slots[index + 3]
        table[one] += step
        table[two] += step
        table[three] += step
        table[four] += step
    for index in range(whole, slots.size):
        table[slots[index]] += step


SMALLEST_TOP = 12
"""Biased exponent of the smallest octave that bins are thinned for."""


MAGNITUDE = 0x7FFFFFFF


NOTHING = (0x7FFFFFFF, -0x80000000)
"""The range of no values, in integers that order as the floats do."""


# The counting loop for channels: each has a table of its own, small enough that a cache holds many of them.
#
# A channel's bins are those of ``bit_histogram`` with 9 bits in its largest octave: a bin is then at most a
# quarter of the step that int8 has in the channel's range, and a channel's table takes 24 KB, half of it
# hardly ever touched. With the tensor's own 11 bits, 2048 channels would take 100 MB, to place the ends of
# ranges more finely than int8 can use.
#
# Values of the same channel are gathered first, 1024 of them, so that one table at a time is in the
# first-level cache; where the channels lie side by side in memory, sixteen are gathered together, which is
# a cache line. Then a channel's values are passed over as in ``kernels``. Where a larger octave comes, the
# table is not settled but its counts are moved to the bins that theirs become a part of, as thinning would.


CHANNEL_BITS = 9
CHANNEL_LINEAR_BINS = 1 << (CHANNEL_BITS + 1)
"""Of each sign; those below 8 stay empty, but for the zeros, which go round the first 8."""
CHANNEL_COARSE_START = 2 * CHANNEL_LINEAR_BINS
CHANNEL_SLOTS = CHANNEL_COARSE_START + (1 << 12)
"""The others are keyed by the exponent, 3 bits of the mantissa, then the sign: what is used lies together."""
CHANNEL_ZERO_SLOTS = 8

_PIECE = 1 << 10
_SIDE_BY_SIDE = 16
_LONG = 256
"""Values of a channel that lie in a row in memory are counted where they are, if they are so many."""
_INFINITY = 0x7F800000
_LOWEST = -0x7F800001


@compiled
def count_channels(
    bits: npt.NDArray[np.uint32],
    table: npt.NDArray[np.uint32],
    tops: npt.NDArray[np.int32],
    low: npt.NDArray[np.int32],
    high: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    with_bins: bool,
) -> None:  # pragma: no cover - compiled
    """Count the finite float32 values of each channel, given as their bits; the others are passed over.

    Shapes:
        bits: (A, G, I, B), where channel ``g * B + b`` has the values ``[:, g, :, b]``.
        table: (G * B, 6144), or (0, 6144) without bins. tops, low, high, counts: (G * B,), the biased
        exponent of the largest octave so far, the range as ``find_range`` tells it, and how many values.
    """
    outer, groups, inner, beside = bits.shape
    slots = np.empty(_PIECE, np.uint16)
    if beside == 1 and inner >= _LONG:
        runs = bits.reshape(
            outer, groups, inner
        )  # A slice of it lies in a row, which the compiler must know.
        for group in range(groups):
            for row in range(outer):
                for start in range(0, inner, _PIECE):
                    values = runs[row, group, start : start + _PIECE]
                    count_channel(values, table, group, tops, low, high, counts, slots, with_bins)
        return
    # Rows a power of two apart would share the few lines of one set of the first-level cache.
    gathered = np.empty((_SIDE_BY_SIDE, _PIECE + 16), np.uint32)
    for group in range(groups):
        for start in range(0, beside, _SIDE_BY_SIDE):
            width = min(_SIDE_BY_SIDE, beside - start)
            first = group * beside + start
            filled = 0
            for row in range(outer):
                done = 0
                while done < inner:
                    size = min(inner - done, _PIECE - filled)
                    part = bits[row, group, done : done + size, start : start + width]
                    gather(part, gathered[:, filled : filled + size])
                    filled += size
                    done += size
                    if filled < _PIECE and (row < outer - 1 or done < inner):
                        continue
                    for index in range(width):
                        values = gathered[index, :filled]
                        channel = first + index
                        count_channel(values, table, channel, tops, low, high, counts, slots, with_bins)
                    filled = 0


@compiled
def gather(
    part: npt.NDArray[np.uint32], gathered: npt.NDArray[np.uint32]
) -> None:  # pragma: no cover - compiled
    """Copy channels that lie side by side to where each has its values in a row.

    Shapes:
        part: (N, W). gathered: at least (W, N).
    """
    size, width = part.shape
    if width == 1:
        for index in range(size):
            gathered[0, index] = part[index, 0]
    elif width == _SIDE_BY_SIDE:
        for index in range(size):
            for channel in range(_SIDE_BY_SIDE):
                gathered[channel, index] = part[index, channel]
    else:
        for index in range(size):
            for channel in range(width):
                gathered[channel, index] = part[index, channel]


@compiled
def count_channel(
    values: npt.NDArray[np.uint32],
    table: npt.NDArray[np.uint32],
    channel: int,
    tops: npt.NDArray[np.int32],
    low: npt.NDArray[np.int32],
    high: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    slots: npt.NDArray[np.uint16],
    with_bins: bool,
) -> None:  # pragma: no cover - compiled
    """Count values of one channel.

    Shapes:
        values: (N,). slots: at least (N,). Others: as above.
    """
    least, most = find_range(values.view(np.int32))
    if least <= _LOWEST or most >= _INFINITY:
        values = keep_finite(values)
        least, most = find_range(values.view(np.int32))
    if not values.size:
        return
    low[channel], high[channel] = min(low[channel], least), max(high[channel], most)
    counts[channel] += values.size
    if not with_bins:
        return
    # Of a negative value, turned round as an ordered integer, the complement has the exponent.
    top = max(most if most >= 0 else ~most, least if least >= 0 else ~least) >> 23
    top = max(top, SMALLEST_TOP)
    if top > tops[channel]:
        raise_top(table[channel], tops[channel], top)
        tops[channel] = top
    find_channel_slots(values, values.view(np.float32), slots, tops[channel])
    count_slots(slots[: values.size], table[channel], np.uint32(1))


@compiled
def keep_finite(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:  # pragma: no cover - compiled
    """Return the finite values.

    Shapes:
        values: (N,).
    """
    finite = np.empty_like(values)
    kept = 0
    for index in range(values.size):
        if values[index] & np.uint32(0x7FFFFFFF) < np.uint32(_INFINITY):
            finite[kept] = values[index]
            kept += 1
    return finite[:kept]


@compiled
def find_channel_slots(
    bits: npt.NDArray[np.uint32], values: npt.NDArray[np.float32], slots: npt.NDArray[np.uint16], top: int
) -> None:  # pragma: no cover - compiled
    """Write each value's slot.

    Shapes:
        bits, values: (N,), the same ones. slots: at least (N,).
    """
    scale = np.float32(2.0 ** (127 + CHANNEL_BITS - top))
    small = np.uint32((top - CHANNEL_BITS + 3) << 23)
    for index in range(bits.size):
        magnitude = bits[index] & np.uint32(0x7FFFFFFF)
        sign = np.int32(bits[index] >> np.uint32(31))
        slot = np.int32(abs(values[index]) * scale) | (sign << np.int32(CHANNEL_BITS + 1))
        coarse = np.int32(CHANNEL_COARSE_START) + (np.int32(magnitude >> np.uint32(20)) << np.int32(1)) + sign
        slot = coarse if magnitude < small else slot
        slot = np.int32(index & 7) if magnitude == np.uint32(0) else slot
        slots[index] = np.uint16(slot)


@compiled
def raise_top(row: npt.NDArray[np.uint32], before: int, top: int) -> None:  # pragma: no cover - compiled
    """Move the counts of a channel to the bins that they have where the largest octave is a larger one.

    Shapes:
        row: (6144,).
    """
    if not before:  # Zeros alone were counted.
        return
    for sign in range(2):
        start = sign * CHANNEL_LINEAR_BINS
        octave = 3
        for index in range(8, CHANNEL_LINEAR_BINS):
            if index >> (octave + 1):
                octave += 1
            held = row[start + index]
            if not held:
                continue
            row[start + index] = 0
            wider = index >> (top - before) if top - before < 32 else 0
            if wider >= 8:
                row[start + wider] += held
            else:
                exponent = before + octave - CHANNEL_BITS
                key = (exponent << 3) | ((index >> (octave - 3)) & 7)
                row[CHANNEL_COARSE_START + 2 * key + sign] += held
