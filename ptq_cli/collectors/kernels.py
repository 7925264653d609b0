"""The counting loop: one pass, no range, no allocation.

A value's bin is the top 20 bits of its float32: sign, exponent and 11 mantissa bits. Eleven, because a bin
is then never wider than a bin of the 2048-bin linear histogram that the entropy and mse methods are defined
on: in the top octave [2^E, 2^(E+1)) a bin is 2^E / 2048 wide, and the linear one max / 2048 >= 2^E / 2048.
With fewer bits the amax that those methods choose would be blurred by the counting.

A page is the 2048 bins of one sign and exponent. Pages are made when a value first needs one, so that a
tensor keeps what its own range needs, and the table of 512 pages stays in the first-level cache.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

MANTISSA_BITS = 11
PAGE_BINS = 1 << MANTISSA_BITS
PAGES = 1 << 9  # One sign bit, eight exponent bits.
NO_ROW = -1
ZERO_SLOTS = 16
"""Zeros go round these slots: one bin hit again and again would wait for its own last increment."""


@njit(nogil=True, cache=True)
def count_bits(
    bits: npt.NDArray[np.uint32], rows: npt.NDArray[np.int32], counts: npt.NDArray[np.int64], start: int
) -> int:  # pragma: no cover - compiled
    """Count float32 values, given as their bits, into ``counts``.

    Shapes:
        bits: (N,). rows: (512,), the row of each page, or -1. counts: (R * 2048,), of which row 0 holds
        the zeros in its first 16 slots.

    Returns:
        The index of the first value whose page has no row, or N when all are counted.
    """
    for index in range(start, bits.size):
        value = bits[index]
        key = value >> np.uint32(12)
        row = rows[key >> np.uint32(11)]
        if row < 0:
            return index
        slot = np.int64(row) * 2048 + np.int64(key & np.uint32(2047))
        if value << np.uint32(1) == np.uint32(0):
            slot = np.int64(index & 15)
        counts[slot] += 1
    return bits.size
