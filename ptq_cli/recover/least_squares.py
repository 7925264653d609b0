"""The best real weights for a layer's moments: linear least squares, damped towards the weights it has.

Products of matrices are ONNX Runtime's, in sessions of one thread, and small blocks are compiled: bits
depend on the processor, and never on the number of threads, as those of a BLAS library do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.core.compiled import compiled
from ptq_cli.recover.second_moments import Float64s, Int64s, SecondMoments
from ptq_cli.runtime.products import multiplied_floats

# Columns eliminated together: such products are fast, and compiled loops take next to nothing.
ELIMINATED_COLUMNS = 192
DAMPING = 0.01  # of the mean variance of an input; measured, see docs/recovery.md
# Of conjugate gradients. What is left of the error changes a share by 0.004 on average, and by 0.05 at most:
# near the best share that is next to nothing of what it gains.
_STEPS = 3


@dataclass(frozen=True, eq=False)
class Factor:
    """The Cholesky factor of a positive definite matrix, ``L L^T``.

    Attributes:
        lower: L, (K, K).
        inverses: of the blocks on its diagonal, which every solution takes.
    """

    lower: Float64s
    inverses: Sequence[Float64s]

    def solve(self, right: Float64s) -> Float64s:
        """Return X with ``X (L L^T) = right``, (M, K) both."""
        found, lower = right.copy(), self.lower
        blocks = list(zip(_blocks(right.shape[1]), self.inverses, strict=True))
        for own, inverse in blocks:
            left = found[:, own] - multiplied_floats(found[:, : own.start], lower[own, : own.start].T)
            found[:, own] = multiplied_floats(left, inverse.T)
        for own, inverse in reversed(blocks):
            left = found[:, own] - multiplied_floats(found[:, own.stop :], lower[own.stop :, own])
            found[:, own] = multiplied_floats(left, inverse)
        return found


def cholesky(matrix: Float64s) -> Factor:
    """Return the factor of a positive definite matrix, (K, K).

    Raises: ValueError: it is not positive definite.

    Example:
        >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).lower.tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    lower = matrix.copy()
    blocks, inverses = _blocks(len(matrix)), []
    for at, own in enumerate(blocks):
        lower[own, own.stop :] = 0.0
        corner = lower[own, own].T.copy()
        if not _factor(corner):
            raise ValueError("the matrix is not positive definite")
        lower[own, own] = corner.T
        inverses.append(_inverse(lower[own, own]))
        below = multiplied_floats(lower[own.stop :, own], inverses[-1].T)
        lower[own.stop :, own] = below
        for other in blocks[at + 1 :]:
            rest = below[other.start - own.stop :]
            lower[other.start :, other] -= multiplied_floats(rest, rest[: other.stop - other.start].T)
    return Factor(lower, inverses)


def _blocks(size: int) -> list[slice]:
    return [
        slice(start, min(start + ELIMINATED_COLUMNS, size)) for start in range(0, size, ELIMINATED_COLUMNS)
    ]


@compiled
def _factor(columns: Float64s) -> bool:  # pragma: no cover - compiled
    """Factor a small matrix whose columns are rows here, neighbors in memory; what is above L becomes 0."""
    for k in range(columns.shape[0]):
        own = columns[k]
        if not own[k] > 0.0:
            return False
        own[:k] = 0.0
        own[k:] /= np.sqrt(own[k])
        for j in range(k + 1, columns.shape[0]):
            columns[j, j:] -= own[j] * own[j:]
    return True


@compiled
def _inverse(lower: Float64s) -> Float64s:  # pragma: no cover - compiled
    """Return the inverse of a small lower triangular matrix."""
    found = np.eye(lower.shape[0])
    for i in range(lower.shape[0]):
        for k in range(i):
            found[i, : k + 1] -= lower[i, k] * found[k, : k + 1]
        found[i, : i + 1] /= lower[i, i]
    return found


def quadratic_forms(matrix: Float64s, rows: Float64s) -> Float64s:
    """Return ``r A r`` of each row r: (K, K) and (M, K) give (M,).

    Example:
        >>> quadratic_forms(np.eye(2), np.array([[3.0, 4.0]])).tolist()
        [25.0]
    """
    return np.asarray((multiplied_floats(rows, matrix) * rows).sum(axis=1))


@dataclass(frozen=True, eq=False, kw_only=True)
class CenteredMoments:
    """Moments for each row, in real units; without their means where a bias makes up for them.

    Attributes:
        rows: how many there were.
        gram: of the inputs with each other.
        cross: of the targets with the inputs.
        input_mean, target_mean: what a bias makes up for; None without one.

    Shapes: gram: (K, K); cross: (M, K); input_mean: (K,); target_mean: (M,).
    """

    rows: int
    gram: Float64s
    cross: Float64s
    input_mean: Float64s | None = None
    target_mean: Float64s | None = None

    @property
    def damping(self) -> float:
        """What is added to each input's moment; 0 if none of them varies."""
        size = len(self.gram)
        return (DAMPING + size / self.rows) * float(np.trace(self.gram)) / size

    def curvature(self) -> Float64s:
        """Damped moments of the inputs, (K, K); an identity if none of them varies."""
        size, damping = len(self.gram), self.damping
        if not damping > 0.0:
            return np.eye(size)
        damped = self.gram.copy()
        damped[np.diag_indices(size)] += damping
        return damped

    def pull(self, weights: Float64s) -> Float64s:
        """Half of the downward slope of the error at some weights: (M, K)."""
        made: Float64s = multiplied_floats(weights, self.gram)
        return self.cross - made

    def bias(self, weights: Float64s) -> Float64s | None:
        """What makes the mean of each channel right beside the products of weights, (M, K)."""
        if self.input_mean is None or self.target_mean is None:
            return None
        return np.asarray(self.target_mean - (weights * self.input_mean).sum(axis=1))


def centered(
    moments: SecondMoments, *, input_step: float, target_step: Float64s, has_bias: bool
) -> CenteredMoments:
    """Return moments in real units; where a bias makes up for means, only what varies counts.

    Shapes: target_step: (M,).
    Edge case: No rows have moments of 0.
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

    Shapes: sums and result: (M, K); means, units: (M,); input_means: (K,).
    """
    found = np.empty(sums.shape)
    for m in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            found[m, k] = (sums[m, k] / rows - means[m] * input_means[k]) * units[m]
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Quadratic:
    """The objective of each output channel: ``(best - w) A (best - w)`` for weights ``w``.

    Attributes:
        curvature: A, the damped second moments of the inputs.
        lower: its Cholesky factor.
        best: the real weights to come near to.
        pull: ``A best``.

    Shapes: curvature, lower: (K, K); best, pull: (M, K).
    """

    curvature: Float64s
    lower: Float64s
    best: Float64s
    pull: Float64s


def factored(moments: CenteredMoments) -> tuple[Float64s, Factor]:
    """Return the curvature, (K, K), and its Cholesky factor."""
    curvature = moments.curvature()
    return curvature, cholesky(curvature)


def fit_least_squares(
    moments: CenteredMoments,
    weights: Float64s,
    *,
    share: float = 1.0,
    known: tuple[Float64s, Factor] | None = None,
) -> Quadratic:
    """Return the objective whose minimum makes a layer's output, behind a quantized input, the wanted one.

    Go by ``share`` from the weights, (M, K), to the optimum; see ``share_that_holds``. ``known`` is what
    ``factored`` returns, for who has it.

    Edge case: Inputs that never vary give no information: the optimum is the weights as they are.

    Source: Frantar et al., GPTQ (2023), for the objective; Zhang et al., Qronos (2025), for the target of the
        float model behind a quantized prefix. The damping of K / rows is measured: see docs/recovery.md.
    """
    curvature, factor = known or factored(moments)
    best, damping = weights.copy(), moments.damping
    if share > 0.0 and damping > 0.0:
        best += share * (factor.solve(moments.cross + damping * weights) - weights)
    return Quadratic(
        curvature=curvature, lower=factor.lower, best=best, pull=multiplied_floats(best, curvature)
    )


def share_that_holds(
    learned: Sequence[CenteredMoments],
    checked: Sequence[CenteredMoments],
    weights: Sequence[Float64s],
    factors: Sequence[Factor],
) -> float:
    """Return the share, 0 to 1, of the way from the weights to the optimum of some rows that others confirm.

    An optimum of few rows follows their noise, too. The share with the least error on the other rows is
    known in closed form. It would be larger for the optimum of both: noise falls with the number of rows.

    Shapes: weights: (M, K) each; factors: of the curvature of all rows, (K, K).
    """
    gain = cost = 0.0
    for one, other, own, factor in zip(learned, checked, weights, factors, strict=True):
        change = near_solution(one.curvature(), factor, one.pull(own))
        gain += float((change * other.pull(own)).sum())
        cost += float(quadratic_forms(other.gram, change).sum())
    return held_share(gain, cost, learned[0].rows, checked[0].rows)


def near_solution(matrix: Float64s, factor: Factor, right: Float64s) -> Float64s:
    """Return about X with ``X A = right``, (M, K), by the factor of a matrix that is much like A, (K, K).

    Source: Hestenes and Stiefel, Methods of conjugate gradients for solving linear systems (1952).
    """
    if len(matrix) <= ELIMINATED_COLUMNS:  # What is exact takes less.
        return cholesky(matrix).solve(right)
    found, rest = np.zeros(right.shape), right
    turned = along = factor.solve(rest)
    power = (rest * turned).sum(axis=1, keepdims=True)
    for _ in range(_STEPS):
        if not power.any():
            break
        image = multiplied_floats(along, matrix)
        curvature = (along * image).sum(axis=1, keepdims=True)
        step = np.divide(power, curvature, out=np.zeros(power.shape), where=curvature > 0.0)
        found, rest = found + step * along, rest - step * image
        turned, before = factor.solve(rest), power
        power = (rest * turned).sum(axis=1, keepdims=True)
        along = turned + np.divide(power, before, out=np.zeros(power.shape), where=before > 0.0) * along
    return found


def held_share(gain: float, cost: float, learned: int, checked: int) -> float:
    """Return the share of the way to an optimum, by its gain and cost on rows that it was not fitted to.

    Example:
        >>> held_share(1.0, 1.0, 300, 100), held_share(1.0, 3.0, 300, 100), held_share(-1.0, 1.0, 300, 100)
        (1.0, 0.4, 0.0)
    """
    if gain <= 0.0 or cost <= 0.0:
        return 0.0
    noise = max(cost / gain - 1.0, 0.0) * learned / (learned + checked)
    return 1.0 / (1.0 + noise)
