"""The counting loop: one pass, no range, no allocation.

A value's page is its sign and exponent, the top 9 bits of its float32; its bin within the page is the top of
its mantissa. A page has at most 2048 bins, 11 bits. Eleven, because a bin is then never wider than a bin of
the 2048-bin linear histogram that the entropy and mse methods are defined on: in the top octave
[2^E, 2^(E+1)) a bin is 2^E / 2048 wide, and the linear one max / 2048 >= 2^E / 2048. With fewer bits the amax
that those methods choose would be blurred by the counting.

Pages are made when a value first needs one, and those of small values have fewer bins (``bit_histogram``
says how many): so a tensor keeps what its own range needs, some 100 KB, most of it in the second-level cache.

A small array is counted straight into its pages, at about 1 ns a value. A large one is first counted into a
table of all 2^20 bins that its thread keeps, which needs no look-up (0.3 ns a value), and the table is then
added to the pages: from the largest octave down until every value is found, some 20 microseconds.

The range is found in the integers that order as the floats do (0.05 ns a value), in the same pass: a piece of
the array that fits the first-level cache is looked at, and then counted.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

MANTISSA_BITS = 11
FLOAT_MANTISSA_BITS = 23
PAGES = 1 << 9  # One sign bit, eight exponent bits.
NO_PAGE = -1
TABLE_BINS = 1 << 20
TABLE_ZEROS = 64
PIECE = 1 << 12
"""Values that are looked at and then counted, while they are in the first-level cache."""
LARGE = 1 << 15
"""From so many values on, the table pays,"""
LARGE_PER_PAGE = 700
"""and from so many for each page that must be moved: a tensor of many octaves has more of them."""
ZERO_SLOTS = 16
"""Zeros go round these slots: one bin hit again and again would wait for its own last increment."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled by numba when it is first called, and kept on disk where that is possible.

    Edge case:
        Where neither the package's folder nor the user's cache can be written, as in a read-only container,
        each process compiles for itself.
    """
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)


@compiled
def count_bits(
    bits: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.int32],
    shifts: npt.NDArray[np.uint32],
    counts: npt.NDArray[np.int64],
    begin: int,
) -> int:  # pragma: no cover - compiled
    """Count float32 values, given as their bits, into ``counts``.

    Shapes:
        bits: (N,), of which those from ``begin`` on are counted.
        starts: (512,), where the bins of each page start, or -1.
        shifts: (512,), how many low mantissa bits each page ignores.
        counts: (16 + B,), of which the first 16 hold the zeros.

    Returns:
        The index of the first value whose page was not made yet, or N when all are counted.
    """
    for index in range(begin, bits.size):
        value = bits[index]
        page = value >> np.uint32(23)
        start = starts[page]
        if start < 0:
            return index
        slot = np.int64(start) + np.int64((value & np.uint32(0x7FFFFF)) >> shifts[page])
        # Masked, not shifted left: numba would widen the shifted value, and -0.0 would keep its sign bit.
        if value & np.uint32(0x7FFFFFFF) == np.uint32(0):
            slot = np.int64(index & 15)
        counts[slot] += 1
    return bits.size


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
        key = value ^ ((value >> np.int32(31)) & np.int32(0x7FFFFFFF))
        low = min(low, key)
        high = max(high, key)
    return int(low), int(high)


@compiled
def count_into_table(
    bits: npt.NDArray[np.uint32], table: npt.NDArray[np.uint32]
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Count float32 values, given as their bits, into a table of all bins, and find their range.

    Shapes:
        bits: (N,). table: (2^20 + 64,), of which the last 64 hold the zeros.

    Returns:
        The range, as ``find_range`` does.
    """
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for start in range(0, bits.size, PIECE):
        piece = bits[start : start + PIECE]
        least, most = find_range(piece.view(np.int32))
        low, high = min(low, least), max(high, most)
        count_piece(piece, table)
    return int(low), int(high)


@compiled
def count_piece(
    bits: npt.NDArray[np.uint32], table: npt.NDArray[np.uint32]
) -> None:  # pragma: no cover - compiled
    """Count float32 values into a table.

    Four values at a time, so that the processor has four independent increments under way; their zeros go to
    slots on four cache lines.

    Shapes:
        bits, table: as above.
    """
    magnitude, shift = np.uint32(0x7FFFFFFF), np.uint32(12)
    whole = bits.size - bits.size % 4
    for index in range(0, whole, 4):
        one, two, three, four = bits[index], bits[index + 1], bits[index + 2], bits[index + 3]
        table[np.uint32(1 << 20) if one & magnitude == np.uint32(0) else one >> shift] += np.uint32(1)
        table[np.uint32((1 << 20) + 16) if two & magnitude == np.uint32(0) else two >> shift] += np.uint32(1)
        table[np.uint32((1 << 20) + 32) if three & magnitude == np.uint32(0) else three >> shift] += (
            np.uint32(1)
        )
        table[np.uint32((1 << 20) + 48) if four & magnitude == np.uint32(0) else four >> shift] += np.uint32(
            1
        )
    for index in range(whole, bits.size):
        last = bits[index]
        table[np.uint32(1 << 20) if last & magnitude == np.uint32(0) else last >> shift] += np.uint32(1)


@compiled
def count_page(page: npt.NDArray[np.uint32]) -> int:  # pragma: no cover - compiled
    """Return how many values a page of a table holds; the processor adds 16 bins at a time.

    Shapes:
        page: (2048,).
    """
    held = np.uint32(0)
    for found in page:
        held += found
    return int(held)


@compiled
def move_page(
    page: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64], merged: int
) -> None:  # pragma: no cover - compiled
    """Add a page of a table to a tensor's bins, and leave it zero.

    Neighbours are added two by two until there are as many as bins: each step is one the processor does for
    many at once, which a sum for each bin is not.

    Shapes:
        page: (2048,). counts: (2048 / 2^merged,).
    """
    halves = np.empty(2048, np.uint32)
    source, at = page, 0
    for step in range(1, merged + 1):
        size = 2048 >> step
        target = halves[at : at + size]
        for index in range(size):
            target[index] = source[2 * index] + source[2 * index + 1]
        source = target
        at += size
    for index in range(counts.size):
        counts[index] += np.int64(source[index])
    page[:] = 0


@compiled
def empty_table(
    table: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.int32],
    shifts: npt.NDArray[np.uint32],
    counts: npt.NDArray[np.int64],
    tops: tuple[int, int],
    left: int,
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Move a table's counts into a tensor's pages, from the top octave down, and leave the table zero.

    Shapes:
        table, starts, shifts, counts: as above. tops: the largest octave of positive values, and of
        negative ones; -1 where there are none. left: how many values the table holds.

    Returns:
        A page that was not made yet, or -1 when all are moved; and how many values are left to move.
    """
    for slot in range(1 << 20, (1 << 20) + 64):
        counts[slot & 15] += np.int64(table[slot])
        left -= int(table[slot])
        table[slot] = 0
    for exponent in range(max(tops), -1, -1):
        for sign in range(2):
            if left == 0:
                return -1, 0
            if exponent > tops[sign]:  # Its 8 KB need not be looked at.
                continue
            page = exponent + 256 * sign
            first = page << 11
            held = count_page(table[first : first + 2048])
            if held == 0:
                continue
            if starts[page] < 0:
                return page, left
            left -= int(held)
            begin, merged = int(starts[page]), int(shifts[page]) - 12
            move_page(table[first : first + 2048], counts[begin : begin + (2048 >> merged)], merged)
    return -1, left
