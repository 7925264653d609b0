"""The counting loop: one pass, no range, no allocation.

A value's page is its sign and exponent, the top 9 bits of its float32; its bin within the page is the top of
its mantissa. A page has at most 2048 bins, 11 bits. Eleven, because a bin is then never wider than a bin of
the 2048-bin linear histogram that the entropy and mse methods are defined on: in the top octave
[2^E, 2^(E+1)) a bin is 2^E / 2048 wide, and the linear one max / 2048 >= 2^E / 2048. With fewer bits the amax
that those methods choose would be blurred by the counting.

Pages are made when a value first needs one, and those of small values have fewer bins (``bit_histogram``
says how many): so a tensor keeps what its own range needs, some 100 KB, most of it in the second-level cache.

A small array is counted straight into its pages, at about 1 ns a value. A large one is first counted into a
table of all 2^20 bins that its thread keeps, which needs no look-up (0.35 ns a value), and the table is then
added to the pages: from the largest octave down until every value is found, some 20 microseconds.
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
LARGE = 1 << 16
"""From so many values on, the table pays,"""
LARGE_PER_PAGE = 1000
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
def count_into_table(
    bits: npt.NDArray[np.uint32], table: npt.NDArray[np.uint32]
) -> None:  # pragma: no cover - compiled
    """Count float32 values, given as their bits, into a table of all bins.

    Four values at a time, so that the processor has four independent increments under way; their zeros go to
    slots on four cache lines.

    Shapes:
        bits: (N,). table: (2^20 + 64,), of which the last 64 hold the zeros.
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
def empty_table(
    table: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.int32],
    shifts: npt.NDArray[np.uint32],
    counts: npt.NDArray[np.int64],
    top: int,
    left: np.int64,
) -> tuple[int, np.int64]:  # pragma: no cover - compiled
    """Move a table's counts into a tensor's pages, from octave ``top`` down, and leave the table zero.

    Shapes:
        table, starts, shifts, counts: as above.

    Returns:
        A page that was not made yet, or -1 when all are moved; and how many values are left to move.
    """
    pairs = table.view(np.uint64)  # Most bins are empty: eight are looked at together.
    for slot in range(1 << 20, (1 << 20) + 64):
        counts[slot & 15] += np.int64(table[slot])
        left -= np.int64(table[slot])
        table[slot] = 0
    for exponent in range(top, -1, -1):
        for page in (exponent, exponent + 256):
            if left == 0:
                return -1, np.int64(0)
            for four in range(page << 10, (page + 1) << 10, 4):
                if pairs[four] | pairs[four + 1] | pairs[four + 2] | pairs[four + 3] == np.uint64(0):
                    continue
                if starts[page] < 0:
                    return page, left
                for key in range(four << 1, (four << 1) + 8):
                    found = np.int64(table[key])
                    counts[starts[page] + ((key & 2047) >> (shifts[page] - 12))] += found
                    left -= found
                    table[key] = 0
    return -1, np.int64(left)
