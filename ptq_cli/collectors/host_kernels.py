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

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled

MANTISSA_BITS = 11
FLOAT_MANTISSA_BITS = 23
LINEAR_BINS = 1 << 12  # Bins of each sign; those below 8 stay empty.
COARSE_BINS = 1 << 12  # Keyed by the sign, the exponent and 3 bits of the mantissa.
ZERO_SLOTS = 16  # Zeros go round these: one slot hit again and again would wait for its own last increment.
COARSE_START = 2 * LINEAR_BINS
ZERO_START = COARSE_START + COARSE_BINS
SLOTS = ZERO_START + ZERO_SLOTS


@compiled
def find_range(bits: npt.NDArray[np.int32]) -> tuple[int, int]:  # pragma: no cover - compiled
    """The smallest and the largest of float32 values, given as their bits, as ordered integers.

    The floats order as their bits do when those of negative numbers are turned round. NaN lies outside the
    infinities then, so that the range also tells whether all values are finite.

    Shapes: bits: (N,).
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

    Shapes: memory: (M,). spans: (N, 2), where an array begins and ends. ranges: (N, 2).
    """
    for index in range(spans.shape[0]):
        low, high = find_range(memory[spans[index, 0] : spans[index, 1]])
        ranges[index, 0], ranges[index, 1] = low, high


@compiled
def count_values(
    bits: npt.NDArray[np.uint32], table: npt.NDArray[np.uint32], top: int, end: int, step: int
) -> tuple[int, int, int]:  # pragma: no cover - compiled
    """Count float32 values, given as their bits, as far as octave ``top`` has bins for them.

    Shapes: bits: (N,). table: (12304,). top: the biased exponent of the largest octave, at least 12. end: how
        many values are counted, from the first on. step: 1 adds, -1 takes away what was added.

    Returns: How many were counted, which is where a piece begins that has a larger octave, NaN or infinity;
        and their range, as ``find_range`` does.
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

    Shapes: memory: (M,). spans: (N, 2), where an array begins and ends. tables: (T, 12304). tops: (N, 2), the
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

    Shapes: bits, values: (N,), the same ones. slots: at least (N,).
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

    Shapes: slots: (N,). table: as above.
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


SMALLEST_TOP = 12  # Biased exponent of the smallest octave that bins are thinned for.


MAGNITUDE = 0x7FFFFFFF


EMPTY_RANGE = (0x7FFFFFFF, -0x80000000)  # The range of no values, in integers that order as the floats do.
