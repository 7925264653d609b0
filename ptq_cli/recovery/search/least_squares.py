"""The best real weights for a layer's moments: linear least squares, damped towards the weights it has."""

from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.recovery.search.centered_moments import CenteredMoments
from ptq_cli.recovery.search.ordered_algebra import cholesky, products, quadratic_forms
from ptq_cli.recovery.search.second_moments import Float64s


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
        """Return the objective of weights, for each channel.

        Shapes:
            weights: (M, K); the result (M,).
        """
        found: Float64s = quadratic_forms(self.curvature, self.best - weights)
        return found


def fit_least_squares(moments: CenteredMoments, weights: Float64s, *, share: float = 1.0) -> Quadratic:
    """Return the objective whose minimum makes a layer's output, behind a quantized input, the wanted one.

    Args:
        moments: of the quantized inputs and of the float model's outputs.
        weights: of the float model, towards which the optimum is damped.
        share: how far to go from the weights to the optimum; see ``share_that_holds``.

    Shapes:
        weights: (M, K).

    Edge case:
        Inputs that never vary give no information: the optimum is the weights as they are.

    Source:
        Frantar et al., GPTQ (2023), for the objective; Zhang et al., Qronos (2025), for the target of the
        float model behind a quantized prefix. The damping of K / rows is measured: see docs/recovery.md.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.recovery.search.centered_moments import centered
        >>> from ptq_cli.recovery.search.second_moments import second_moments
        >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]] * 1000)
        >>> y = x @ np.array([[3.0], [-1.0]])
        >>> sums = centered(second_moments(x, y), input_step=1.0, target_step=np.ones(1), has_bias=False)
        >>> fit_least_squares(sums, np.array([[2.0, 0.0]])).best.round(1).tolist()
        [[3.0, -1.0]]
        >>> fit_least_squares(sums, np.array([[2.0, 0.0]]), share=0.5).best.round(1).tolist()
        [[2.5, -0.5]]
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
    """Return how far to go from a float model's weights to the optimum of some rows, judged by other rows.

    An optimum of few rows follows their noise, too. The share with the least error on the other rows is
    known in closed form. It would be larger for the optimum of both: noise falls with the number of rows.

    Args:
        learned: moments that optima are made of, of each group of a layer.
        checked: of other rows.
        weights: of the float model.

    Returns:
        From 0 to 1.

    Shapes:
        weights: (M, K) each.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.recovery.search.centered_moments import centered
        >>> from ptq_cli.recovery.search.second_moments import second_moments
        >>> x = np.array([[1.0], [-1.0]] * 500)
        >>> found = [
        ...     centered(second_moments(x, y * x), input_step=1.0, target_step=np.ones(1), has_bias=False)
        ...     for y in (4.0, 3.0)
        ... ]
        >>> round(share_that_holds(found[:1], found[1:], [np.array([[2.0]])]), 2)  # 4 or 3? It was 2.
        0.67
    """
    gain = cost = 0.0
    for one, other, own in zip(learned, checked, weights, strict=True):
        change = one.optimum(cholesky(one.curvature()), own) - own
        gain += float((change * (other.cross - products(other.gram, own))).sum())
        cost += float(quadratic_forms(other.gram, change).sum())
    if gain <= 0.0 or cost <= 0.0:
        return 0.0
    rows = learned[0].rows, checked[0].rows
    noise = max(cost / gain - 1.0, 0.0) * rows[0] / (rows[0] + rows[1])
    return 1.0 / (1.0 + noise)
