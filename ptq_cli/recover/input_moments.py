"""Sums of products of the integers that a layer reads, exact whichever way the rows are split."""

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import compiled
from ptq_cli.core.tensors import Array
from ptq_cli.recover.second_moments import Float64s, Int64s, SecondMoments
from ptq_cli.runtime.probes import SIGN, Int32s, is_signed_exact, multiplied, signed_bytes

# Products of matrices of 8-bit integers, by the integer kernels of ONNX Runtime.


MOST_ROWS = 2**15
"""As many products of two integers of 8 bits and a sign, added up, are below 2^31."""


class ByteRows:
    """Rows of unsigned bytes, to be multiplied by parts of themselves.

    The kernels multiply unsigned by signed bytes, which takes half the time, where a trial shows that this
    processor adds them up without saturating; otherwise unsigned ones, which all add up exactly.
    """

    def __init__(self, rows: Array, zero: int) -> None:
        """Prepare the products; ``zero`` is the integer that stands for 0.

        Shapes:
            rows: (R, K) or (groups, R, K), with R at most 2^15.
        """
        flat = rows if rows.ndim == 2 else np.swapaxes(rows, 0, 1).reshape(rows.shape[1], -1)
        across = np.empty(flat.shape[::-1], rows.dtype)
        transpose(np.ascontiguousarray(flat), across)
        self._left = across.reshape(*rows.shape[:-2], rows.shape[-1], rows.shape[-2])
        self._rows = np.ascontiguousarray(rows)
        self._zero: Array = np.asarray(zero, np.uint8)
        self._right, self._right_zero = self._rows, self._zero
        if is_signed_exact():
            self._right, self._right_zero = signed_bytes(self._rows), signed_bytes(self._zero)

    def gram(self, first: int, last: int, width: int) -> Int32s:
        """Return sums of products of columns ``first`` to ``last`` with the first ``width`` ones, less zero.

        Shapes:
            the result (last - first, width), or (groups, last - first, width).
        """
        left, right = self._left[..., first:last, :], self._right[..., :width]
        return multiplied(left, right, self._zero, self._right_zero)

    def times(self, left: Array) -> Int32s:
        """Return unsigned bytes, (…, M, R), times the rows less zero: (…, M, K)."""
        return multiplied(left, self._right, np.asarray(0, np.uint8), self._right_zero)

    def sums(self) -> Int32s:
        """Return the sum of each column, less zero: (K,) or (groups, K)."""
        return self.times(np.ones((*self._rows.shape[:-2], 1, self._rows.shape[-2]), np.uint8))[..., 0, :]


@compiled
def transpose(rows: Array, across: Array) -> None:  # pragma: no cover - compiled
    """Write rows, (R, K), as columns, (K, R): in pieces of which a cache holds both orders."""
    for first in range(0, rows.shape[0], 64):
        for left in range(0, rows.shape[1], 64):
            for k in range(left, min(left + 64, rows.shape[1])):
                for row in range(first, min(first + 64, rows.shape[0])):
                    across[k, row] = rows[row, k]


PANEL = 256
"""Rows of a matrix that are computed together; what is right of the diagonal is left out."""


def _panels(size: int) -> list[tuple[int, int]]:
    """Return the shapes of the parts of a triangle: some rows, as far as the last one's diagonal element."""
    starts = range(0, size, PANEL)
    return [(min(start + PANEL, size) - start, min(start + PANEL, size)) for start in starts]


# Products of bytes with targets of more bits, whose bytes are multiplied one by one.


DIGITS = 2
"""Bytes of a target."""


def byte_moments(
    rows: Array, zero: int, made: npt.NDArray[np.float32], steps: Float64s, groups: int
) -> list[SecondMoments]:
    """Return the moments of each group of some rows of bytes and of targets, which are put on their steps.

    They are those of ``second_moments`` to the last bit. No target takes more than 2^15 - 1 steps.

    Shapes:
        rows: (R, groups * K); made: (R, M); steps: (M,).
    """
    if rows.dtype == np.int8:
        rows, zero = rows.view(np.uint8) ^ SIGN, zero + SIGN
    found: list[SecondMoments] = []
    for start in range(0, len(rows), MOST_ROWS // 2):
        some = slice(start, start + MOST_ROWS // 2)
        part = _byte_moments(rows[some], zero, made[some], steps, groups)
        found = [one.merge(other) for one, other in zip(found, part, strict=True)] if found else part
    return found


def _byte_moments(
    rows: Array, zero: int, made: npt.NDArray[np.float32], steps: Float64s, groups: int
) -> list[SecondMoments]:
    count, size, each = len(rows), rows.shape[1] // groups, made.shape[1] // groups
    own = ByteRows(np.swapaxes(rows.reshape(count, groups, size), 0, 1), zero)
    parts, totals = np.empty((DIGITS, made.shape[1], count), np.uint8), np.empty(made.shape[1], np.int64)
    split_targets(np.ascontiguousarray(made), steps, parts, totals)
    sums = own.sums().astype(np.int64)
    cross = np.zeros((groups, each, size), np.int64)
    for digit, part in enumerate(parts):
        cross += own.times(part.reshape(groups, each, count)).astype(np.int64) << (8 * digit)
    # The bytes are those of the target and half of what they can tell apart.
    cross -= sums[:, None] << (8 * DIGITS - 1)
    gram = np.empty((groups, size, size), np.int64)
    for height, width in _panels(size):
        first = width - height
        gram[:, first:width, :width] = own.gram(first, width, width)
        gram[:, :first, first:width] = np.swapaxes(gram[:, first:width, :first], 1, 2)
    return [
        SecondMoments(rows=count, gram=gram[at], cross=cross[at], inputs=sums[at], targets=own_totals)
        for at, own_totals in enumerate(totals.reshape(groups, each))
    ]


@compiled
def split_targets(
    made: npt.NDArray[np.float32], steps: Float64s, parts: Array, totals: Int64s
) -> None:  # pragma: no cover - compiled
    """Write the bytes of targets in steps and half of what these bytes can tell apart, and the targets' sums.

    Shapes:
        made: (R, M); steps, totals: (M,); parts: (bytes, M, R), the lowest byte first.
    """
    digits, half = parts.shape[0], np.int64(1) << np.int64(8 * parts.shape[0] - 1)
    totals[:] = 0
    for first in range(0, made.shape[0], 64):  # Few enough rows that both orders of them stay in a cache.
        last = min(first + 64, made.shape[0])
        for channel in range(made.shape[1]):
            for row in range(first, last):
                target = np.int64(np.rint(np.float64(made[row, channel]) / steps[channel]))
                totals[channel] += target
                target += half
                for digit in range(digits):
                    parts[digit, channel, row] = np.uint8((target >> np.int64(8 * digit)) & np.int64(255))
