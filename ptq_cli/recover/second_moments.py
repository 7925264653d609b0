"""Sums of products of what a layer reads with itself and with what it should make, in exact integers.

Once the ranges of activations are decided, what a layer reads are integers. Their sums of products are
integers too, so that they are the same in whichever order, batches or parts they are added.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.products import SIGN_OFFSET, Int32s, is_signed_exact, multiplied, signed_bytes

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
_EXACT = 2**53  # up to this float64 holds every integer, whichever order a library adds in
MOST_EXACT_ROWS = 2**15  # as many products of two integers of 8 bits and a sign, added up, are below 2^31
_PANEL = 256  # rows of a matrix that are computed together; what is right of the diagonal is left out
DIGITS = 2  # bytes of a target


@dataclass(frozen=True, eq=False, kw_only=True)
class SecondMoments:
    """What least squares needs to know of a layer's inputs and targets.

    Attributes:
        rows: how many pairs of an input and a target were seen.
        gram: sum of the products of the inputs with each other.
        cross: sum of the products of the targets with the inputs.
        inputs, targets: their sums.

    Shapes: gram: (K, K); cross: (M, K); inputs: (K,); targets: (M,).
    Units: Integer steps of the inputs and of the targets.
    """

    rows: int
    gram: Int64s
    cross: Int64s
    inputs: Int64s
    targets: Int64s

    def merge(self, other: "SecondMoments") -> "SecondMoments":
        """Moments of both parts; exact, so the order does not matter."""
        return SecondMoments(
            rows=self.rows + other.rows,
            gram=self.gram + other.gram,
            cross=self.cross + other.cross,
            inputs=self.inputs + other.inputs,
            targets=self.targets + other.targets,
        )


def second_moments(inputs: Float64s, targets: Float64s) -> SecondMoments:
    """Return the moments of some rows, which hold integers.

    The products are those of float64 matrices: every sum on the way is an integer below 2^53, which float64
    holds exactly, so the result does not depend on the library, its threads, or how the rows are split.

    Shapes: inputs: (rows, K); targets: (rows, M).
    Edge case: No rows have moments of 0.

    Example:
        >>> second_moments(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0], [-1.0]])).gram.tolist()
        [[10, 14], [14, 20]]
    """
    largest = max(np.abs(inputs).max(initial=1.0), np.abs(targets).max(initial=1.0))
    rows = max(1, int(_EXACT / largest**2))
    found: SecondMoments | None = None
    for start in range(0, max(1, len(inputs)), rows):
        x, y = inputs[start : start + rows], targets[start : start + rows]
        part = SecondMoments(
            rows=len(x),
            gram=(x.T @ x).astype(np.int64),
            cross=(y.T @ x).astype(np.int64),
            inputs=x.sum(axis=0).astype(np.int64),
            targets=y.sum(axis=0).astype(np.int64),
        )
        found = part if found is None else found.merge(part)
    assert found is not None  # noqa: S101 - there is at least one part
    return found


def byte_moments(
    rows: Array, zero: int, made: npt.NDArray[np.float32], steps: Float64s, groups: int
) -> list[SecondMoments]:
    """Return the moments of each group of some rows of bytes and of targets, which are put on their steps.

    They are those of ``second_moments`` to the last bit, by the integer kernels of ONNX Runtime. No target
    takes more than 2^15 - 1 steps; its bytes are multiplied one by one.

    Shapes: rows: (R, groups * K); made: (R, M); steps: (M,).
    """
    if rows.dtype == np.int8:
        rows, zero = rows.view(np.uint8) ^ SIGN_OFFSET, zero + SIGN_OFFSET
    found: list[SecondMoments] = []
    for start in range(0, len(rows), MOST_EXACT_ROWS // 2):
        some = slice(start, start + MOST_EXACT_ROWS // 2)
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
    for first in range(0, size, _PANEL):
        last = min(first + _PANEL, size)
        gram[:, first:last, :last] = own.gram(first, last, last)
        gram[:, :first, first:last] = np.swapaxes(gram[:, first:last, :first], 1, 2)
    return [
        SecondMoments(rows=count, gram=gram[at], cross=cross[at], inputs=sums[at], targets=own_totals)
        for at, own_totals in enumerate(totals.reshape(groups, each))
    ]


class ByteRows:
    """Rows of unsigned bytes, to be multiplied by parts of themselves.

    The kernels multiply unsigned by signed bytes, which takes half the time, where a trial shows that this
    processor adds them up without saturating; otherwise unsigned ones, which all add up exactly.
    """

    def __init__(self, rows: Array, zero: int) -> None:
        """Prepare the products; ``zero`` is the integer that stands for 0.

        Shapes: rows: (groups, R, K), with R at most 2^15.
        """
        groups, count, size = rows.shape
        across = np.empty((groups * size, count), rows.dtype)
        transpose(np.ascontiguousarray(np.swapaxes(rows, 0, 1).reshape(count, -1)), across)
        self._left = across.reshape(groups, size, count)
        self._rows = np.ascontiguousarray(rows)
        self._zero: Array = np.asarray(zero, np.uint8)
        self._right, self._right_zero = self._rows, self._zero
        if is_signed_exact():
            self._right, self._right_zero = signed_bytes(self._rows), signed_bytes(self._zero)

    def gram(self, first: int, last: int, width: int) -> Int32s:
        """Products of columns ``first`` to ``last`` with the first ``width``, for each group."""
        left, right = self._left[:, first:last], self._right[..., :width]
        return multiplied(left, right, self._zero, self._right_zero)

    def times(self, left: Array) -> Int32s:
        """Unsigned bytes, (groups, M, R), times the rows less zero: (groups, M, K)."""
        return multiplied(left, self._right, np.asarray(0, np.uint8), self._right_zero)

    def sums(self) -> Int32s:
        """Sum of each column, less zero: (groups, K)."""
        return self.times(np.ones((len(self._rows), 1, self._rows.shape[1]), np.uint8))[:, 0]


@compiled
def transpose(rows: Array, across: Array) -> None:  # pragma: no cover - compiled
    """Write rows, (R, K), as columns, (K, R): in pieces of which a cache holds both orders."""
    for first in range(0, rows.shape[0], 64):
        for left in range(0, rows.shape[1], 64):
            for k in range(left, min(left + 64, rows.shape[1])):
                for row in range(first, min(first + 64, rows.shape[0])):
                    across[k, row] = rows[row, k]


@compiled
def split_targets(
    made: npt.NDArray[np.float32], steps: Float64s, parts: Array, totals: Int64s
) -> None:  # pragma: no cover - compiled
    """Write the bytes of targets in steps and half of what these bytes can tell apart, and the targets' sums.

    Shapes: made: (R, M); steps, totals: (M,); parts: (bytes, M, R), the lowest byte first.
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
