"""Flips that the samples do not show: how many there may be, and how much wider they make an interval.

The bootstrap draws from the samples, so it knows nothing of what none of them did. If no prediction flips,
each resample has a drop of 0, and its interval would be [0, 0], with certainty. But ``n`` samples without a
flip are not unlikely in a population of which a share ``1 - 0.05^(1/n)`` flips, about ``3 / n``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Unseen:
    """How far unseen flips may move a value down, and up; neither is negative.

    ``changed`` is how many samples changed, where that is known of each: 0 counts as 1. None if only the
    values without one sample tell.
    """

    down: float
    up: float
    changed: int | None = None


Reach = Callable[[Sequence[Float64Array], Sequence[Float64Array]], Sequence[Unseen]]
"""From values, and from them without one sample each, to how far unseen flips may move each."""
MISSED = 0.05  # probability with which no sample shows what that share does
RULE_OF_THREE = -float(np.log(MISSED))  # expected flips that leave no trace with this probability
TRUSTED = 4.0
"""Flips of equal weight: so many or fewer do not show what others are like; of twice as many a quarter of the
unseen ones counts, of ten times as many a hundredth."""


def unseen_share(samples: npt.ArrayLike) -> Float64Array:
    """Largest share of a population of which none is among so many samples with 5 % probability.

    Source: Hanley and Lippman-Hand 1983, "If nothing goes wrong, is everything all right?" (the rule of
    three).

    Example:
        >>> unseen_share([1, 50, 200]).round(4).tolist()
        [0.95, 0.0582, 0.0149]
    """
    return 1 - MISSED ** (1 / np.asarray(samples, np.float64))


def after_unseen_flips(values: Float64Array, samples: npt.ArrayLike, total: int, *, sides: int = 1) -> float:
    """A mean over classes, had as many samples turned wrong as may be without one seen.

    It is the smaller one of two: samples of all classes turn wrong, or those of one class alone.

    Args:
        values: of each class, 0 if all its samples are wrong, [classes].
        samples: how many each class has, [classes].
        total: samples of all classes.
        sides: 2 where a wrong sample costs twice, such as a pixel that misses a class and is in another.

    Edge case: A class that is only predicted has no sample that can turn wrong. 0 without a class.

    Example:
        >>> round(after_unseen_flips(np.array([1.0, 0.9]), [30, 20], 50), 4)
        0.8874
    """
    if not len(values):
        return 0.0
    counts = np.asarray(samples, np.float64)
    alone = np.where(counts > 0, unseen_share(np.maximum(counts, 1)), 0.0)
    lost_alone = np.max(values * (1 - (1 - alone) ** sides)) / len(values)
    lost = values.mean() * (1 - (1 - unseen_share(max(total, 1))) ** sides)
    return float(values.mean() - max(lost, lost_alone))


def moved_by_unseen(value: float, left_out: Float64Array, flipped: float | None) -> float:
    """Distance that a value moves if as many samples turn wrong as may be without one seen.

    Args:
        value: of all samples.
        left_out: values without one sample each, or without one group of samples each.
        flipped: the value after that; None if only the samples tell what one adds. One that turns wrong is
            then as bad as the worst, after it was as good as the best.

    Edge case: 0 if no sample differs from another, which tells nothing.

    Example:
        >>> moved_by_unseen(0.75, np.array([0.75]), 0.5)
        0.25
    """
    if flipped is not None:
        return abs(value - flipped)
    finite = left_out[np.isfinite(left_out)]
    return RULE_OF_THREE * float(np.ptp(finite)) if finite.size else 0.0


def with_unseen(drawn: Float64Array, left_out: Float64Array, unseen: Unseen) -> tuple[float, float]:
    """Ends between which 95 % of the drawn values are if each also has flips that none shows.

    How many those are is exponential with mean 1 of both kinds, which is what a sample of each kind adds in a
    Bayesian bootstrap; their difference is Laplace's distribution, whose 2.5 % tails begin at the rule of
    three. They count in so far as few samples changed, or carry the variance: if many do, the samples show
    what flips are like, and the bootstrap's own assumption holds.

    ``drawn`` [resamples] are values of samples drawn with replacement, ``left_out`` [groups] those without
    one sample, or one group of samples, each.

    Edge case: Without a flip the ends are those of the unseen ones.
    Source: Rubin 1981, "The Bayesian bootstrap"; Bonett and Price 2012, "Adjusted Wald confidence interval
    for a difference of binomial proportions based on paired data", adds a sample of each kind likewise. That
    no sample may carry much of the variance is Lindeberg's condition.

    Example:
        >>> low, high = with_unseen(np.zeros(2000), np.zeros(50), Unseen(0.0, 0.06))
        >>> low, round(high, 3)
        (0.0, 0.06)
    """
    share = _largest_share(left_out) if unseen.changed is None else 1 / max(unseen.changed, 1)
    flips = _laplace(len(drawn)) * min(1.0, TRUSTED * share) ** 2
    ordered = np.sort(drawn + np.where(flips < 0, unseen.down, unseen.up) * flips)
    tail = round(0.025 * len(drawn))
    return float(ordered[tail]), float(ordered[len(drawn) - 1 - tail])


def _largest_share(left_out: Float64Array) -> float:
    """Largest share that a sample has in the variance; 1 if there is none."""
    squares = (left_out - left_out.mean()) ** 2
    total = float(squares.sum())
    return float(squares.max()) / total if np.isfinite(total) and total > 0 else 1.0


@lru_cache(maxsize=4)  # one number of resamples has one order
def _laplace(count: int) -> Float64Array:
    """Quantiles of Laplace's distribution in a seeded order, the 97.5 % one being 1."""
    places = (np.arange(count) + 0.5) / count
    quantiles = np.where(places < 0.5, np.log(2 * places), -np.log(2 * (1 - places))) / RULE_OF_THREE
    return np.random.default_rng(0).permutation(quantiles)
