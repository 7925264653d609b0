"""Second moments in real units, with what least squares adds to them where they say little."""

from dataclasses import dataclass

import numpy as np

from ptq_cli.recovery.search.ordered_algebra import quadratic_forms, solve
from ptq_cli.recovery.search.second_moments import Float64s, SecondMoments

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
        """Return the damped moments of the inputs; those of inputs that never vary are an identity.

        Shapes:
            the result (K, K).
        """
        size, damping = len(self.gram), self.damping
        if not damping > 0.0:
            return np.eye(size)
        damped = self.gram.copy()
        damped[np.diag_indices(size)] += damping
        return damped

    def optimum(self, lower: Float64s, weights: Float64s) -> Float64s:
        """Return the best real weights, damped towards those that are given.

        Args:
            lower: Cholesky factor of the curvature.
            weights: of the float model.

        Shapes:
            lower: (K, K); weights and result: (M, K).
        """
        damping = self.damping
        return solve(lower, self.cross + damping * weights) if damping > 0.0 else weights.copy()

    def errors(self, weights: Float64s, bias: Float64s | None = None) -> Float64s:
        """Return the mean square error of each channel's output, less the mean square of its target.

        Args:
            weights: of each channel.
            bias: what is added to each channel; None is the best one.

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
    """Return moments in real units.

    Args:
        moments: of integers.
        input_step: size of an integer step of the inputs.
        target_step: of the targets, for each channel.
        has_bias: a bias makes up for means, so that only what varies counts.

    Shapes:
        target_step: (M,).

    Edge case:
        No rows have moments of 0.
    """
    rows = max(moments.rows, 1)
    gram, cross = moments.gram / rows, moments.cross / rows
    input_mean, target_mean = moments.inputs / rows, moments.targets / rows
    if has_bias:
        gram -= np.outer(input_mean, input_mean)
        cross -= np.outer(target_mean, input_mean)
    gram *= input_step**2
    cross *= target_step[:, None] * input_step
    return CenteredMoments(
        rows=rows,
        gram=gram,
        cross=cross,
        input_mean=input_mean * input_step if has_bias else None,
        target_mean=target_mean * target_step if has_bias else None,
    )
