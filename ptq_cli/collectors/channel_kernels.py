"""The counting loop for channels: each has a table of its own, small enough that a cache holds many of them.

A channel's bins are those of ``bit_histogram`` with 9 bits in its largest octave: a bin is then at most a
quarter of the step that int8 has in the channel's range, and a channel's table takes 24 KB, half of it
hardly ever touched. With the tensor's own 11 bits, 2048 channels would take 100 MB, to place the ends of
ranges more finely than int8 can use.

Values of the same channel are gathered first, 1024 of them, so that one table at a time is in the
first-level cache; where the channels lie side by side in memory, sixteen are gathered together, which is
a cache line. Then a channel's values are passed over as in ``host_kernels``. Where a larger octave comes, the
table is not settled but its counts are moved to the bins that theirs become a part of, as thinning would.
"""

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import SMALLEST_TOP, count_slots, find_range
from ptq_cli.core.compiled import compiled

CHANNEL_BITS = 9
# Bins of each sign; those below 8 stay empty, but for the zeros, which go round the first 8.
CHANNEL_LINEAR_BINS = 1 << (CHANNEL_BITS + 1)
CHANNEL_COARSE_START = 2 * CHANNEL_LINEAR_BINS
# Slots behind are keyed by the exponent, 3 bits of the mantissa, then the sign: what is used lies together.
CHANNEL_SLOTS = CHANNEL_COARSE_START + (1 << 12)
CHANNEL_ZERO_SLOTS = 8
_PIECE = 1 << 10
_SIDE_BY_SIDE = 16
# Values of a channel that lie in a row in memory are counted where they are, if they are so many.
_LONG = 256
_INFINITY = 0x7F800000
_LOWEST = -0x7F800001
# Of each channel: biased exponent of its largest octave, its range as ``find_range`` tells it, its values.
_Seen = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]


@compiled
def count_channels(
    bits: npt.NDArray[np.uint32],
    table: npt.NDArray[np.uint32],
    seen: _Seen,
) -> None:  # pragma: no cover - compiled
    """Count the finite float32 values of each channel, given as their bits; the others are passed over.

    Shapes: bits: (A, G, I, B), where channel ``g * B + b`` has the values ``[:, g, :, b]``. table: (G * B,
        6144), or (0, 6144) without bins. seen: four of (G * B,), as ``_Seen`` says.
    """
    outer, groups, inner, beside = bits.shape
    slots = np.empty(_PIECE, np.uint16)
    if beside == 1 and inner >= _LONG:
        runs = bits.reshape(outer, groups, inner)  # A slice lies in a row, which the compiler must know.
        for group in range(groups):
            for row in range(outer):
                for start in range(0, inner, _PIECE):
                    values = runs[row, group, start : start + _PIECE]
                    count_channel(values, table, group, seen, slots)
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
                        count_channel(values, table, first + index, seen, slots)
                    filled = 0


@compiled
def gather(
    part: npt.NDArray[np.uint32], gathered: npt.NDArray[np.uint32]
) -> None:  # pragma: no cover - compiled
    """Copy channels that lie side by side to where each has its values in a row.

    Shapes: part: (N, W). gathered: at least (W, N).
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
    seen: _Seen,
    slots: npt.NDArray[np.uint16],
) -> None:  # pragma: no cover - compiled
    """Count values of one channel.

    Shapes: values: (N,). slots: at least (N,). Others: as above.
    """
    tops, low, high, counts = seen
    least, most = find_range(values.view(np.int32))
    if least <= _LOWEST or most >= _INFINITY:
        values = keep_finite(values)
        least, most = find_range(values.view(np.int32))
    if not values.size:
        return
    low[channel], high[channel] = min(low[channel], least), max(high[channel], most)
    counts[channel] += values.size
    if not table.shape[0]:
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
    """The finite values.

    Shapes: values: (N,).
    """
    finite = np.empty_like(values)
    kept = 0
    for index in range(values.size):
        if values[index] & np.uint32(0x7FFFFFFF) < np.uint32(_INFINITY):
            finite[kept] = values[index]
            kept += 1
    return finite[:kept]


@compiled
def raise_top(row: npt.NDArray[np.uint32], before: int, top: int) -> None:  # pragma: no cover - compiled
    """Move the counts of a channel to the bins that they have where the largest octave is a larger one.

    Shapes: row: (6144,).
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


@compiled
def find_channel_slots(
    bits: npt.NDArray[np.uint32], values: npt.NDArray[np.float32], slots: npt.NDArray[np.uint16], top: int
) -> None:  # pragma: no cover - compiled
    """Write each value's slot.

    Shapes: bits, values: (N,), the same ones. slots: at least (N,).
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
