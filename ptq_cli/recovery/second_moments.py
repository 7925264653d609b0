"""Sums of products of what a layer reads with itself and with what it should make, in exact integers.

Once the ranges of activations are decided, what a layer reads are integers. Their sums of products are
integers too, so that they are the same in whichever order, batches or parts they are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import compiled

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

EXACT = 2**53
"""Up to this float64 holds every integer, whichever order a library adds in."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SecondMoments:
    """What least squares needs to know of a layer's inputs and targets.

    Attributes:
        rows: how many pairs of an input and a target were seen.
        gram: sum of the products of the inputs with each other.
        cross: sum of the products of the targets with the inputs.
        inputs, targets: their sums.

    Shapes:
        gram: (K, K); cross: (M, K); inputs: (K,); targets: (M,).

    Units:
        Integer steps of the inputs and of the targets.
    """

    rows: int
    gram: Int64s
    cross: Int64s
    inputs: Int64s
    targets: Int64s

    def merge(self, other: "SecondMoments") -> "SecondMoments":
        """Return the moments of both parts; exact, so the order does not matter."""
        return SecondMoments(
            rows=self.rows + other.rows,
            gram=self.gram + other.gram,
            cross=self.cross + other.cross,
            inputs=self.inputs + other.inputs,
            targets=self.targets + other.targets,
        )


def second_moments(inputs: Float64s, targets: Float64s) -> SecondMoments:
    """Return the moments of some rows.

    The products are those of float64 matrices: every sum on the way is an integer below 2^53, which float64
    holds exactly, so the result does not depend on the library, its threads, or how the rows are split.

    Shapes:
        inputs: (rows, K); targets: (rows, M); both hold integers.

    Edge case:
        No rows have moments of 0.
    """
    largest = max(np.abs(inputs).max(initial=1.0), np.abs(targets).max(initial=1.0))
    rows = max(1, int(EXACT / largest**2))
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


# Symmetric systems, solved and multiplied with every sum in a fixed order.
#
# They are compiled by numba and never call BLAS, whose last bits depend on its number of threads.


PANEL = 32
"""Columns of a matrix that are eliminated together: as many rows of them fit into a second-level cache. Four
divides it."""
TILE = 256
"""Columns of a panel that stay in the first-level cache while rows are taken from them."""


def cholesky(matrix: Float64s) -> Float64s:
    """Return the lower triangular L with ``L L^T`` equal to a positive definite matrix.

    Shapes:
        matrix and result: (K, K).
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
        for i in range(start, size):
            for k in range(start, min(i + 1, end)):
                columns[k - start, i] = lower[i, k]
        if not _factor_panel(columns[: end - start], start):
            return False
        for i in range(start, size):
            for k in range(start, min(i + 1, end)):
                lower[i, k] = columns[k - start, i]
        whole = size - (size - end) % 4
        for left in range(end, whole, TILE):
            for i in range(left, whole, 4):
                _take_panel(columns, lower[i : i + 4], i, left, min(left + TILE, i + 1))
        for i in range(end, size):  # What four rows do not have in common.
            for j in range(i - (i - end) % 4 + 1 if i < whole else end, i + 1):
                for k in range(end - start):
                    lower[i, j] -= columns[k, i] * columns[k, j]
    return True


@compiled
def _factor_panel(columns: Float64s, start: int) -> bool:  # pragma: no cover - compiled
    """Factor columns of a matrix from its row ``start`` on, which are rows here: neighbors in memory.

    Shapes:
        columns: (panel, K).
    """
    for k in range(columns.shape[0]):
        own = columns[k, start:]
        if not own[k] > 0.0:
            return False
        root = np.sqrt(own[k])
        own[k] = root
        for i in range(k + 1, own.shape[0]):
            own[i] /= root
        for j in range(k + 1, columns.shape[0]):
            other, factor = columns[j, start:], own[j]
            for i in range(j, own.shape[0]):
                other[i] -= factor * own[i]
    return True


@compiled
def _take_panel(
    columns: Float64s, rows: Float64s, at: int, start: int, end: int
) -> None:  # pragma: no cover - compiled
    """Take a panel's products from columns ``start`` to ``end`` of four rows, the first of which is ``at``.

    Four columns of the panel are taken from four rows in one go, each sum in the order of the columns: what
    is read of the panel serves all four.

    Shapes:
        columns: (panel, K); rows: (4, K).
    """
    one, two, three, four = (rows[0, start:end], rows[1, start:end],
                             rows[2, start:end], rows[3, start:end])  # fmt: skip
    for k in range(0, columns.shape[0], 4):
        p, q, r, s = (columns[k, start:end], columns[k + 1, start:end],
                      columns[k + 2, start:end], columns[k + 3, start:end])  # fmt: skip
        a, b = columns[k, at : at + 4], columns[k + 1, at : at + 4]
        c, d = columns[k + 2, at : at + 4], columns[k + 3, at : at + 4]
        for j in range(end - start):
            w, x, y, z = p[j], q[j], r[j], s[j]
            one[j] = (((one[j] - a[0] * w) - b[0] * x) - c[0] * y) - d[0] * z
            two[j] = (((two[j] - a[1] * w) - b[1] * x) - c[1] * y) - d[1] * z
            three[j] = (((three[j] - a[2] * w) - b[2] * x) - c[2] * y) - d[2] * z
            four[j] = (((four[j] - a[3] * w) - b[3] * x) - c[3] * y) - d[3] * z


def solve(lower: Float64s, right: Float64s) -> Float64s:
    """Return X with ``X (L L^T) = right``.

    Shapes:
        lower: (K, K); right and result: (M, K).
    """
    columns = np.array(right.T, order="C")  # A copy, also of a single row.
    _substitute(lower, columns)
    return np.ascontiguousarray(columns.T)


@compiled
def _substitute(lower: Float64s, columns: Float64s) -> None:  # pragma: no cover - compiled
    size, width = columns.shape
    upper = lower.T.copy()
    for first in range(0, width, 64):
        own = columns[:, first : first + 64].copy()
        for i in range(size):
            take_rows(lower[i], own, own[i], 0, i, 1)
            own[i] /= lower[i, i]
        for i in range(size - 1, -1, -1):
            take_rows(upper[i], own, own[i], size - 1, i, -1)
            own[i] /= lower[i, i]
        columns[:, first : first + 64] = own


@compiled
def take_rows(
    factors: Float64s, rows: Float64s, result: Float64s, start: int, end: int, step: int
) -> None:  # pragma: no cover - compiled
    """Take rows times their factors from a row, one after the other from ``start`` to before ``end``.

    Shapes:
        factors: (K,); rows: (K, M); result: (M,).
    """
    k, left = start, abs(end - start)
    while left >= 4:
        a, b, c, d = factors[k], factors[k + step], factors[k + 2 * step], factors[k + 3 * step]
        p, q, r, s = rows[k], rows[k + step], rows[k + 2 * step], rows[k + 3 * step]
        for m in range(result.shape[0]):
            result[m] = (((result[m] - a * p[m]) - b * q[m]) - c * r[m]) - d * s[m]
        k, left = k + 4 * step, left - 4
    while left > 0:
        for m in range(result.shape[0]):
            result[m] -= factors[k] * rows[k, m]
        k, left = k + step, left - 1


def products(matrix: Float64s, rows: Float64s) -> Float64s:
    """Return the rows times a symmetric matrix.

    Shapes:
        matrix: (K, K); rows and result: (M, K).
    """
    found = np.zeros(rows.shape)
    add_products(matrix, np.ascontiguousarray(rows), found)
    return found


@compiled
def add_products(matrix: Float64s, rows: Float64s, found: Float64s) -> None:  # pragma: no cover - compiled
    """Add rows times a symmetric matrix to what is found, in the order of the matrix's rows.

    Shapes:
        matrix: (K, K); rows, found: (M, K).
    """
    size = rows.shape[1]
    for left in range(0, size, TILE):
        right = min(left + TILE, size)
        _add_part(matrix, rows, 0, size, left, right, found, left)


@compiled
def _add_part(
    matrix: Float64s,
    rows: Float64s,
    start: int,
    end: int,
    left: int,
    right: int,
    found: Float64s,
    at: int,
) -> None:  # pragma: no cover - compiled
    """Add rows times the matrix's rows from ``start`` to ``end``, of its columns from ``left`` to ``right``.

    Shapes:
        matrix: (K, K); rows: (M, K); found: (M, any), to which is added from column ``at`` on.
    """
    whole = end - (end - start) % 4
    for i in range(start, whole, 4):
        p, q = matrix[i, left:right], matrix[i + 1, left:right]
        r, s = matrix[i + 2, left:right], matrix[i + 3, left:right]
        for m in range(rows.shape[0]):
            a, b, c, d = rows[m, i], rows[m, i + 1], rows[m, i + 2], rows[m, i + 3]
            own = found[m, at : at + right - left]
            for j in range(own.shape[0]):
                own[j] = (((own[j] + a * p[j]) + b * q[j]) + c * r[j]) + d * s[j]
    for i in range(whole, end):
        for m in range(rows.shape[0]):
            own = found[m, at : at + right - left]
            for j in range(own.shape[0]):
                own[j] += rows[m, i] * matrix[i, left + j]


@compiled
def quadratic_forms(matrix: Float64s, rows: Float64s) -> Float64s:  # pragma: no cover - compiled
    """Return ``r A r`` of each row r, for a symmetric A.

    Shapes:
        matrix: (K, K); rows: (M, K); the result (M,).

    Example:
        >>> quadratic_forms(np.eye(2), np.array([[3.0, 4.0]])).tolist()
        [25.0]
    """
    found, size = np.zeros(rows.shape[0]), rows.shape[1]
    twice = 2.0 * rows
    product = np.empty((rows.shape[0], TILE))
    for left in range(0, size, TILE):
        right = min(left + TILE, size)
        product[:] = 0.0
        _add_part(matrix, rows, left, right, left, right, product, 0)
        # What is below the tile stands for what is right of it, too.
        _add_part(matrix, twice, right, size, left, right, product, 0)
        for m in range(rows.shape[0]):
            for j in range(right - left):
                found[m] += product[m, j] * rows[m, left + j]
    return found


# Second moments in real units, with what least squares adds to them where they say little.


DAMPING = 0.01
"""Of the mean variance of an input; measured, see docs/recovery.md."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CenteredMoments:
    """Moments for each row, in real units; without their means where a bias makes up for them.

    Attributes:
        rows: how many there were.
        gram: of the inputs with each other.
        cross: of the targets with the inputs.
        input_mean, target_mean: what a bias makes up for; None without one.

    Shapes:
        gram: (K, K); cross: (M, K); input_mean: (K,); target_mean: (M,).
    """

    rows: int
    gram: Float64s
    cross: Float64s
    input_mean: Float64s | None
    target_mean: Float64s | None

    @property
    def damping(self) -> float:
        """What is added to each input's moment; 0 if none of them varies."""
        size = len(self.gram)
        return (DAMPING + size / self.rows) * float(np.trace(self.gram)) / size

    def curvature(self) -> Float64s:
        """Return the damped moments of the inputs, (K, K); an identity if none of them varies."""
        size, damping = len(self.gram), self.damping
        if not damping > 0.0:
            return np.eye(size)
        damped = self.gram.copy()
        damped[np.diag_indices(size)] += damping
        return damped

    def optimum(self, lower: Float64s, weights: Float64s) -> Float64s:
        """Return the best real weights, damped towards those given; ``lower`` is the curvature's factor.

        Shapes:
            lower: (K, K); weights and result: (M, K).
        """
        damping = self.damping
        return solve(lower, self.cross + damping * weights) if damping > 0.0 else weights.copy()

    def errors(self, weights: Float64s, bias: Float64s | None = None) -> Float64s:
        """Return the mean square error of each channel's output, less the mean square of its target.

        Without a bias that of the best one counts.

        Shapes:
            weights: (M, K); bias and result: (M,).
        """
        found = quadratic_forms(self.gram, weights) - 2.0 * (weights * self.cross).sum(axis=1)
        if bias is not None and self.input_mean is not None and self.target_mean is not None:
            found += (self.target_mean - (weights * self.input_mean).sum(axis=1) - bias) ** 2
        return np.asarray(found)


def centered(
    moments: SecondMoments, *, input_step: float, target_step: Float64s, has_bias: bool
) -> CenteredMoments:
    """Return moments in real units; where a bias makes up for means, only what varies counts.

    Shapes:
        target_step: (M,).

    Edge case:
        No rows have moments of 0.
    """
    rows = max(moments.rows, 1)
    input_mean, target_mean = moments.inputs / rows, moments.targets / rows
    taken = has_bias * input_mean
    return CenteredMoments(
        rows=rows,
        gram=_in_units(moments.gram, rows, taken, taken, np.full(len(taken), input_step**2)),
        cross=_in_units(moments.cross, rows, has_bias * target_mean, taken, target_step * input_step),
        input_mean=input_mean * input_step if has_bias else None,
        target_mean=target_mean * target_step if has_bias else None,
    )


@compiled
def _in_units(
    sums: Int64s, rows: int, means: Float64s, input_means: Float64s, units: Float64s
) -> Float64s:  # pragma: no cover - compiled
    """Return mean products, less those of the means, in one pass over matrices of a hundred megabytes.

    Shapes:
        sums and result: (M, K); means, units: (M,); input_means: (K,).
    """
    found = np.empty(sums.shape)
    for m in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            found[m, k] = (sums[m, k] / rows - means[m] * input_means[k]) * units[m]
    return found


# The best real weights for a layer's moments: linear least squares, damped towards the weights it has.


@dataclass(frozen=True, eq=False, kw_only=True)
class Quadratic:
    """The objective of each output channel: ``(best - w) A (best - w)`` for weights ``w``.

    Attributes:
        curvature: A, the damped second moments of the inputs.
        lower: its Cholesky factor.
        best: the real weights to come near to.
        pull: ``A best``.

    Shapes:
        curvature, lower: (K, K); best, pull: (M, K).
    """

    curvature: Float64s
    lower: Float64s
    best: Float64s
    pull: Float64s

    def error(self, weights: Float64s) -> Float64s:
        """Return the objective of weights, (M, K), for each channel, (M,)."""
        found: Float64s = quadratic_forms(self.curvature, self.best - weights)
        return found


def fit_least_squares(moments: CenteredMoments, weights: Float64s, *, share: float = 1.0) -> Quadratic:
    """Return the objective whose minimum makes a layer's output, behind a quantized input, the wanted one.

    Go by ``share`` from the weights to the optimum; see ``share_that_holds``.

    Shapes:
        weights: (M, K).

    Edge case:
        Inputs that never vary give no information: the optimum is the weights as they are.

    Source:
        Frantar et al., GPTQ (2023), for the objective; Zhang et al., Qronos (2025), for the target of the
        float model behind a quantized prefix. The damping of K / rows is measured: see docs/recovery.md.
    """
    curvature = moments.curvature()
    lower = cholesky(curvature)
    best = weights.copy()
    if share > 0.0:
        best += share * (moments.optimum(lower, weights) - weights)
    return Quadratic(curvature=curvature, lower=lower, best=best, pull=products(curvature, best))


def share_that_holds(
    learned: Sequence[CenteredMoments], checked: Sequence[CenteredMoments], weights: Sequence[Float64s]
) -> float:
    """Return how far to go, 0 to 1, from a model's weights to the optimum of some rows, judged by others.

    An optimum of few rows follows their noise, too. The share with the least error on the other rows is
    known in closed form. It would be larger for the optimum of both: noise falls with the number of rows.

    Shapes:
        weights: (M, K) each.
    """
    gain = cost = 0.0
    for one, other, own in zip(learned, checked, weights, strict=True):
        change = one.optimum(cholesky(one.curvature()), own) - own
        gain += float((change * (other.cross - products(other.gram, own))).sum())
        cost += float(quadratic_forms(other.gram, change).sum())
    return held_share(gain, cost, learned[0].rows, checked[0].rows)


def held_share(gain: float, cost: float, learned: int, checked: int) -> float:
    """Return how far to go, by what a change to the optimum of some rows gains and costs on others."""
    if gain <= 0.0 or cost <= 0.0:
        return 0.0
    noise = max(cost / gain - 1.0, 0.0) * learned / (learned + checked)
    return 1.0 / (1.0 + noise)
