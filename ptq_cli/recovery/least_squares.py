"""The best real weights for a layer's moments: linear least squares, damped towards the weights it has."""

from dataclasses import dataclass

import numpy as np

from ptq_cli.collectors.kernels.compiled import compiled
from ptq_cli.recovery.second_moments import Float64s, SecondMoments

DAMPING = 0.01
"""Of the mean variance of an input; measured, see docs/recovery.md."""
PANEL = 32
"""Columns of a matrix that are eliminated together: as many rows of them fit into a second-level cache."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Quadratic:
    """The objective of each output channel: ``(best - w) A (best - w)`` for weights ``w``.

    Attributes:
        curvature: A, the damped second moments of the inputs.
        lower: its Cholesky factor.
        best: the continuous optimum.
        pull: ``A best``.
        input_mean, target_mean: what a bias makes up for; None without one.
        damped: fewer rows were seen than there are inputs.

    Shapes:
        curvature, lower: (K, K); best, pull: (M, K); input_mean: (K,); target_mean: (M,).
    """

    curvature: Float64s
    lower: Float64s
    best: Float64s
    pull: Float64s
    input_mean: Float64s | None
    target_mean: Float64s | None
    damped: bool

    def error(self, weights: Float64s) -> Float64s:
        """Return the objective of weights, for each channel.

        Shapes:
            weights: (M, K); the result (M,).
        """
        found: Float64s = quadratic_forms(self.curvature, self.best - weights)
        return found


def fit_least_squares(
    moments: SecondMoments,
    weights: Float64s,
    *,
    input_step: float,
    target_step: Float64s,
    has_bias: bool,
) -> Quadratic:
    """Return the objective whose minimum makes a layer's output, behind a quantized input, the wanted one.

    Args:
        moments: of the quantized inputs and of the float model's outputs.
        weights: of the float model, towards which the optimum is damped.
        input_step: size of an integer step of the inputs.
        target_step: of the targets, for each channel.
        has_bias: a bias makes up for means, so that only what varies counts.

    Shapes:
        weights: (M, K); target_step: (M,).

    Edge case:
        Inputs that never vary give no information: the optimum is the weights as they are.

    Source:
        Frantar et al., GPTQ (2023), for the objective; Zhang et al., Qronos (2025), for the target of the
        float model behind a quantized prefix. The damping of K / rows is measured: see docs/recovery.md.

    Example:
        >>> from ptq_cli.recovery.second_moments import second_moments
        >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]] * 1000)
        >>> y = x @ np.array([[3.0], [-1.0]])
        >>> found = fit_least_squares(
        ...     second_moments(x, y),
        ...     np.array([[2.0, 0.0]]),
        ...     input_step=1.0,
        ...     target_step=np.ones(1),
        ...     has_bias=False,
        ... )
        >>> found.best.round(1).tolist()
        [[3.0, -1.0]]
    """
    rows, size = max(moments.rows, 1), weights.shape[1]
    gram = moments.gram / rows
    cross = moments.cross / rows
    input_mean, target_mean = moments.inputs / rows, moments.targets / rows
    if has_bias:
        gram -= np.outer(input_mean, input_mean)
        cross -= np.outer(target_mean, input_mean)
    gram *= input_step**2
    cross *= target_step[:, None] * input_step
    variance = float(np.trace(gram)) / size
    if variance > 0.0:
        damping = (DAMPING + size / rows) * variance
        gram[np.diag_indices(size)] += damping
        pull = cross + damping * weights
    else:
        gram, pull = np.eye(size), weights.copy()
    lower = cholesky(gram)
    return Quadratic(
        curvature=gram,
        lower=lower,
        best=solve(lower, pull),
        pull=pull,
        input_mean=input_mean * input_step if has_bias else None,
        target_mean=target_mean * target_step if has_bias else None,
        damped=moments.rows < size,
    )


def cholesky(matrix: Float64s) -> Float64s:
    """Return the lower triangular L with ``L L^T`` equal to a positive definite matrix.

    It is written out here since the bits of a library's result depend on its number of threads.

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
