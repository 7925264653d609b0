"""Sums of products of the integers that a layer reads, exact whichever way the rows are split."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.core.tensors import Array
from ptq_cli.recovery.search.second_moments import Float64s, Int64s

EXACT_ROWS = 256
"""Products of two integers of 8 bits and a sign add up to less than 2^24, which float32 holds exactly."""
SMALL = 255
PANEL = 512
"""Rows of a matrix that are computed together; what is right of the diagonal is left out."""
WAITING_ROWS = 1024
"""Rows that are kept until their products are added: those of one sample alone may be few."""


@dataclass(frozen=True, eq=False, kw_only=True)
class InputMoments:
    """What is known of the rows that a layer reads.

    Attributes:
        rows: how many there were.
        sums: of each input.
        products: sums of the products of the inputs with each other: the lower triangle, row by row.

    Shapes:
        sums: (groups, K); products: (groups, K * (K + 1) / 2).

    Units:
        Integer steps of the inputs, from the zero point.
    """

    rows: int
    sums: Int64s
    products: Int64s

    def merge(self, other: "InputMoments") -> "InputMoments":
        """Return the moments of both parts; exact, so the order does not matter.

        Raises:
            ValueError: the two are of other inputs.
        """
        if self.sums.shape != other.sums.shape:
            raise ValueError(f"moments of {self.sums.shape} and of {other.sums.shape} inputs do not merge")
        return InputMoments(
            rows=self.rows + other.rows, sums=self.sums + other.sums, products=self.products + other.products
        )

    def gram(self, group: int) -> Float64s:
        """Return the whole matrix of a group.

        Shapes:
            the result (K, K).

        Example:
            >>> InputMoments(rows=1, sums=np.array([[1, 2]]), products=np.array([[1, 2, 4]])).gram(0).tolist()
            [[1.0, 2.0], [2.0, 4.0]]
        """
        size = self.sums.shape[1]
        found = np.zeros((size, size))
        start = 0
        for row in range(size):
            found[row, : row + 1] = found[: row + 1, row] = self.products[group, start : start + row + 1]
            start += row + 1
        return found


class InputSums:
    """Adds up the moments of a layer's rows.

    Example:
        >>> sums = InputSums(groups=1, size=2, zero=1)
        >>> sums.add(np.array([[2, 3], [1, 0]], np.uint8))
        >>> found = sums.moments()
        >>> found.rows, found.sums.tolist(), found.products.tolist()
        (2, [[1, 1]], [[1, 2, 5]])
    """

    def __init__(self, *, groups: int, size: int, zero: int) -> None:
        """Begin with nothing.

        Args:
            groups: parts of a row that are apart from each other.
            size: how many inputs each part has.
            zero: the integer that stands for 0.
        """
        self._groups, self._size, self._zero = groups, size, zero
        self._waiting: list[Array] = []
        self._rows = self._waits = 0
        self._sums = np.zeros((groups, size), np.int64)
        whole = [np.zeros((groups, size, size), np.int64)] if groups > 1 else list(_panels(size))
        self._products = whole

    @staticmethod
    def nbytes(groups: int, size: int) -> int:
        """Return how much memory the sums take."""
        return 8 * groups * size * size if groups > 1 else sum(array.nbytes for array in _panels(size))

    def add(self, rows: Array) -> None:
        """Add rows of integers.

        Shapes:
            rows: (rows, groups * K).
        """
        self._waiting.append(rows)
        self._waits += len(rows)
        if self._waits >= WAITING_ROWS:
            self._flush()

    def moments(self) -> InputMoments:
        """Return what was added up so far."""
        self._flush()
        if self._groups > 1:
            low = np.tril_indices(self._size)
            products = self._products[0][:, low[0], low[1]]
        else:
            products = np.concatenate([row for panel in self._products for row in _triangle(panel)])[None]
        return InputMoments(rows=self._rows, sums=self._sums.copy(), products=products)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting).astype(np.int64) - self._zero
        self._waiting, self._waits = [], 0
        self._rows += len(rows)
        self._sums += rows.sum(axis=0).reshape(self._groups, self._size)
        largest = int(np.abs(rows).max(initial=0))
        at_once = EXACT_ROWS if largest <= SMALL else max(1, 2**53 // max(1, largest) ** 2)
        kind = np.dtype(np.float32 if largest <= SMALL else np.float64)
        for start in range(0, len(rows), at_once):
            self._add_products(rows[start : start + at_once].astype(kind))

    def _add_products(self, rows: npt.NDArray[Any]) -> None:
        if self._groups > 1:
            apart = np.swapaxes(rows.reshape(len(rows), self._groups, self._size), 0, 1)
            self._products[0] += np.matmul(np.swapaxes(apart, 1, 2), apart).astype(np.int64)
            return
        for panel in self._products:
            height, width = panel.shape
            products = rows[:, width - height : width].T @ rows[:, :width]
            np.add(panel, products.astype(np.int64), out=panel)


def _panels(size: int) -> Iterator[Int64s]:
    """Yield zeros for the rows of a triangle, some at a time, each as far as its last diagonal element."""
    for start in range(0, size, PANEL):
        end = min(start + PANEL, size)
        yield np.zeros((end - start, end), np.int64)


def _triangle(panel: Int64s) -> Iterator[Int64s]:
    first = panel.shape[1] - panel.shape[0] + 1
    return (row[: first + index] for index, row in enumerate(panel))
