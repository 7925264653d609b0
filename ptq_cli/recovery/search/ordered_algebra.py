"""Symmetric systems, solved and multiplied with every sum in a fixed order.

They are compiled by numba and never call BLAS, whose last bits depend on its number of threads.
"""

import numpy as np

from ptq_cli.collectors.kernels.compiled import compiled
from ptq_cli.recovery.search.second_moments import Float64s

PANEL = 32
"""Columns of a matrix that are eliminated together: as many rows of them fit into a second-level cache."""


def cholesky(matrix: Float64s) -> Float64s:
    """Return the lower triangular L with ``L L^T`` equal to a positive definite matrix.

    Shapes:
        matrix and result: (K, K).

    Raises:
        ValueError: the matrix is not positive definite.

    Example:
        >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    lower = np.tril(matrix)
    if not _factor(lower, PANEL):
        raise ValueError("the matrix is not positive definite")
    return lower


@compiled
def _factor(lower: Float64s, panel: int) -> bool:  # pragma: no cover - compiled
    size = lower.shape[0]
    columns = np.empty((panel, size))
    for start in range(0, size, panel):
        end = min(start + panel, size)
        for k in range(start, end):
            if not lower[k, k] > 0.0:
                return False
            root = np.sqrt(lower[k, k])
            lower[k, k] = root
            for i in range(k + 1, size):
                lower[i, k] /= root
                for j in range(k + 1, min(i + 1, end)):
                    lower[i, j] -= lower[i, k] * lower[j, k]
        for k in range(start, end):
            for i in range(end, size):
                columns[k - start, i] = lower[i, k]
        for i in range(end, size):
            row = lower[i]
            for k in range(end - start):
                factor, column = columns[k, i], columns[k]
                for j in range(end, i + 1):
                    row[j] -= factor * column[j]
    return True


def solve(lower: Float64s, right: Float64s) -> Float64s:
    """Return X with ``X (L L^T) = right``.

    Shapes:
        lower: (K, K); right and result: (M, K).

    Example:
        >>> solve(np.array([[2.0, 0.0], [1.0, 2.0]]), np.array([[8.0, 9.0]])).tolist()
        [[1.375, 1.25]]
    """
    columns = np.array(right.T, order="C")  # A copy, also of a single row.
    _substitute(lower, columns)
    return np.ascontiguousarray(columns.T)


@compiled
def _substitute(lower: Float64s, columns: Float64s) -> None:  # pragma: no cover - compiled
    size, width = columns.shape
    for first in range(0, width, 64):
        last = min(first + 64, width)
        for k in range(size):
            for m in range(first, last):
                columns[k, m] /= lower[k, k]
            for i in range(k + 1, size):
                factor = lower[i, k]
                for m in range(first, last):
                    columns[i, m] -= factor * columns[k, m]
        for k in range(size - 1, -1, -1):
            for m in range(first, last):
                columns[k, m] /= lower[k, k]
            for i in range(k):
                factor = lower[k, i]
                for m in range(first, last):
                    columns[i, m] -= factor * columns[k, m]


def products(matrix: Float64s, rows: Float64s) -> Float64s:
    """Return the rows times a symmetric matrix.

    Shapes:
        matrix: (K, K); rows and result: (M, K).

    Example:
        >>> products(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[1.0, 2.0]])).tolist()
        [[4.0, 7.0]]
    """
    found = np.zeros(rows.shape)
    _multiply(matrix, np.ascontiguousarray(rows), found)
    return found


@compiled
def _multiply(matrix: Float64s, rows: Float64s, found: Float64s) -> None:  # pragma: no cover - compiled
    size = rows.shape[1]
    for m in range(rows.shape[0]):
        for i in range(size):
            factor = rows[m, i]
            for j in range(size):
                found[m, j] += factor * matrix[i, j]


@compiled
def quadratic_forms(matrix: Float64s, rows: Float64s) -> Float64s:  # pragma: no cover - compiled
    """Return ``r A r`` of each row r.

    Shapes:
        matrix: (K, K); rows: (M, K); the result (M,).

    Example:
        >>> quadratic_forms(np.eye(2), np.array([[3.0, 4.0]])).tolist()
        [25.0]
    """
    found = np.zeros(rows.shape[0])
    product = np.empty(rows.shape[1])
    for m in range(rows.shape[0]):
        product[:] = 0.0
        for i in range(rows.shape[1]):
            factor, row = rows[m, i], matrix[i]
            for j in range(rows.shape[1]):
                product[j] += factor * row[j]
        for j in range(rows.shape[1]):
            found[m] += product[j] * rows[m, j]
    return found
