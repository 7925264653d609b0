"""Intervals of values that are not functions of sums, such as ranks: draws are weights of the samples."""

from collections.abc import Callable

import numpy as np

from ptq_cli.report.intervals.bootstrap import RESAMPLES, SEED, Float64Array, interval_of
from ptq_cli.report.intervals.interval import Interval

OfWeights = Callable[[Float64Array], Float64Array]
"""From how often each unit counts, [units], to one value or several, [values]."""

MOST_WORK = 2_000_000_000
"""Elements that all evaluations together may read: about ten seconds."""

FEWEST_RESAMPLES = 400
"""Fewer resamples leave too few values beyond an end to locate it."""

GROUPS = 200
"""Groups of units that are left out in turn, for the acceleration; single units would need N evaluations."""


def resamples_within(cost: int) -> int:
    """Return how many evaluations there is time for; 0 if they would be too few.

    Args:
        cost: elements that one evaluation reads.

    Example:
        >>> resamples_within(20_000), resamples_within(4_000_000), resamples_within(50_000_000)
        (2000, 500, 0)
    """
    affordable = min(RESAMPLES, MOST_WORK // max(1, cost))
    return affordable if affordable >= FEWEST_RESAMPLES else 0


def reweighed_intervals(
    units: int, of_weights: OfWeights, *, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[Interval | None, ...]:
    """Return the 95 % interval of each value: bias-corrected and accelerated bootstrap.

    Args:
        units: how many samples there are, or pairs of them.
        of_weights: the values.
        resamples: how many times the units are drawn, with replacement.
        seed: seed of the draws; the same seed gives the same interval.

    Shapes:
        of_weights takes [units] and gives [values].

    Units:
        those of the values.

    Edge case:
        None for fewer than two units, and where a value is not finite.

    Source:
        Efron 1987, as ``bootstrap_interval``; the acceleration from groups as in Efron and Tibshirani 1993,
        section 11.5.

    Example:
        >>> values = np.arange(100.0)
        >>> (mean,) = reweighed_intervals(100, lambda weights: np.array([weights @ values / 100]))
        >>> bool(43 < mean.low < 49.5 < mean.high < 56)
        True
    """
    whole = of_weights(np.ones(units))
    if units < 2:
        return (None,) * len(whole)
    generator = np.random.default_rng(seed)
    drawn = np.array(
        [
            of_weights(np.bincount(generator.integers(0, units, units), minlength=units).astype(np.float64))
            for _ in range(resamples)
        ]
    )
    group = np.arange(units) % min(GROUPS, units)
    left_out = np.array([of_weights((group != index).astype(np.float64)) for index in range(group.max() + 1)])
    return tuple(
        interval_of(float(value), left_out[:, index], drawn[:, index]) for index, value in enumerate(whole)
    )
