"""Sums of products of the integers that a layer reads, exact whichever way the rows are split."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.compiled import compiled
from ptq_cli.core.tensors import Array
from ptq_cli.recover.second_moments import EXACT, Float64s, Int64s, SecondMoments
from ptq_cli.runtime.products import SIGN, Int32s, is_signed_exact, multiplied, signed_bytes

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


MOST_32 = 2**31 - 1
PANEL = 256
"""Rows of a matrix that are computed together; what is right of the diagonal is left out."""
WAITING_ROWS, WAITING_BYTES = 1024, 2 << 20
"""Rows are kept until there are so many, and so many bytes: their products are added up in 32 bits, and the
less often these are added to sums in 64 bits, the less time it takes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class InputMoments:
    """What is known of the rows that a layer reads.

    Attributes:
        rows: how many there were.
        sums: of each input.
        products: sums of the products of the inputs with each other: the lower triangle, row by row; of 32
            bits if all of them fit.

    Shapes:
        sums: (groups, K); products: (groups, K * (K + 1) / 2).

    Units:
        Integer steps of the inputs, from the zero point.
    """

    rows: int
    sums: Int64s
    products: npt.NDArray[np.signedinteger]

    def merge(self, other: "InputMoments") -> "InputMoments":
        """Return the moments of both parts; exact, so the order does not matter."""
        if self.sums.shape != other.sums.shape:
            raise ValueError(f"moments of {self.sums.shape} and of {other.sums.shape} inputs do not merge")
        products = np.add(self.products, other.products, dtype=np.int64)
        return InputMoments(
            rows=self.rows + other.rows, sums=self.sums + other.sums, products=narrowed(products)
        )

    def gram(self, group: int) -> Float64s:
        """Return the whole matrix of a group: (K, K)."""
        size = self.sums.shape[1]
        found = np.zeros((size, size))
        start = 0
        for row in range(size):
            found[row, : row + 1] = found[: row + 1, row] = self.products[group, start : start + row + 1]
            start += row + 1
        return found


class InputSums:
    """Adds up the moments of a layer's rows."""

    def __init__(self, *, groups: int, size: int, zero: int) -> None:
        """Begin with nothing: rows have ``groups`` parts of ``size`` inputs; ``zero`` is the integer of 0."""
        self._groups, self._size, self._zero = groups, size, zero
        self._waiting: list[Array] = []
        self._rows = self._waits = 0
        self._sums = np.zeros((groups, size), np.int64)
        shapes = [(groups, size, size)] if groups > 1 else _panels(size)
        self._products: list[npt.NDArray[np.signedinteger]] = [np.zeros(shape, np.int32) for shape in shapes]

    @staticmethod
    def nbytes(groups: int, size: int) -> int:
        """Return how much memory the sums and the rows that wait take."""
        values = groups * size * size if groups > 1 else sum(map(math.prod, _panels(size)))
        return 8 * values + groups * size * _rows_at_once(groups * size)

    def add(self, rows: Array) -> None:
        """Add rows of integers.

        Shapes:
            rows: (rows, groups * K).
        """
        most = _rows_at_once(self._groups * self._size)
        for start in range(0, len(rows), most):
            self._waiting.append(rows[start : start + most])
            self._waits += len(self._waiting[-1])
            if self._waits >= most:
                self._flush()

    def moments(self) -> InputMoments:
        """Return what was added up so far."""
        self._flush()
        if self._groups > 1:
            low = np.tril_indices(self._size)
            products = self._products[0][:, low[0], low[1]]
        else:
            products = np.empty((1, self._size * (self._size + 1) // 2), self._products[0].dtype)
            start = 0
            for panel in self._products:
                start += copy_triangle(panel, products[0, start:])
        return InputMoments(rows=self._rows, sums=self._sums.copy(), products=narrowed(products))

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting)
        self._waiting, self._waits = [], 0
        self._rows += len(rows)
        if rows.itemsize == 1:
            self._add_bytes(rows)
        else:
            self._add_integers(rows.astype(np.int64) - self._zero)

    def _add_bytes(self, rows: Array) -> None:
        """Add the products of integers of 8 bits, as 32 bits while they hold the sums of all rows so far."""
        zero = self._zero
        if rows.dtype == np.int8:
            rows, zero = rows.view(np.uint8) ^ SIGN, zero + SIGN
        if self._rows > MOST_ROWS:
            self._widen()
        apart = rows.reshape(len(rows), self._groups, self._size).swapaxes(0, 1) if self._groups > 1 else rows
        own = ByteRows(apart, zero)
        self._sums += own.sums().reshape(self._groups, self._size)
        for panel in self._products:
            height, width = panel.shape[-2:]
            np.add(panel, own.gram(width - height, width, width), out=panel)

    def _widen(self) -> None:
        """Give the sums 64 bits."""
        self._products = [panel.astype(np.int64, copy=False) for panel in self._products]

    def _add_integers(self, rows: Int64s) -> None:
        """Add the products of larger integers, as many at a time as float64 adds up exactly."""
        self._widen()
        self._sums += rows.sum(axis=0).reshape(self._groups, self._size)
        at_once = max(1, EXACT // max(1, int(np.abs(rows).max(initial=0))) ** 2)
        for start in range(0, len(rows), at_once):
            self._add_floats(rows[start : start + at_once].astype(np.float64))

    def _add_floats(self, rows: Float64s) -> None:
        if self._groups > 1:
            apart = np.swapaxes(rows.reshape(len(rows), self._groups, self._size), 0, 1)
            self._products[0] += np.matmul(np.swapaxes(apart, 1, 2), apart).astype(np.int64)
            return
        for panel in self._products:
            height, width = panel.shape
            products = rows[:, width - height : width].T @ rows[:, :width]
            np.add(panel, products.astype(np.int64), out=panel)


def _rows_at_once(width: int) -> int:
    return min(max(WAITING_ROWS, WAITING_BYTES // max(1, width)), MOST_ROWS // 2)


def _panels(size: int) -> list[tuple[int, int]]:
    """Return the shapes of the parts of a triangle: some rows, as far as the last one's diagonal element."""
    starts = range(0, size, PANEL)
    return [(min(start + PANEL, size) - start, min(start + PANEL, size)) for start in starts]


def narrowed(products: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """Return sums as 32 bits if all of them fit, so that equal ones are stored alike however they were added.

    Example:
        >>> [narrowed(np.array([value])).dtype.name for value in (5, -(2**31))]
        ['int32', 'int64']
    """
    if products.dtype == np.int32 or not products.size:
        return products.astype(np.int32, copy=False)
    fits = int(products.min()) >= -MOST_32 and int(products.max()) <= MOST_32
    return products.astype(np.int32) if fits else products.astype(np.int64, copy=False)


@compiled
def copy_triangle(
    panel: npt.NDArray[np.signedinteger], products: npt.NDArray[np.signedinteger]
) -> int:  # pragma: no cover - compiled
    """Write the rows of a panel, each as far as its diagonal element; return how many sums that are.

    Shapes:
        panel: (rows, columns), whose last element lies on the diagonal; products: at least as many as are
        written.
    """
    height, width = panel.shape
    place = 0
    for row in range(height):
        for column in range(width - height + row + 1):
            products[place] = panel[row, column]
            place += 1
    return place


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
