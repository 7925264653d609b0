"""The counting loop: one pass, no range, no allocation.

A value's page is its sign and exponent, the top 9 bits of its float32; its bin within the page is the top of
its mantissa. A page has at most 2048 bins, 11 bits. Eleven, because a bin is then never wider than a bin of
the 2048-bin linear histogram that the entropy and mse methods are defined on: in the top octave
[2^E, 2^(E+1)) a bin is 2^E / 2048 wide, and the linear one max / 2048 >= 2^E / 2048. With fewer bits the amax
that those methods choose would be blurred by the counting.

Pages are made when a value first needs one, and those of small values have fewer bins (``bit_histogram``
says how many): so a tensor keeps what its own range needs, some 100 KB, most of it in the second-level cache.
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
