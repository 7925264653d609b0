"""Intervals by resampling: of functions of sums or of weights; flips that the samples do not show.

The bootstrap draws from the samples, so it knows nothing of what none of them did. If no prediction flips,
each resample has a drop of 0, and its interval would be [0, 0], with certainty. But ``n`` samples without a
flip are not unlikely in a population of which a share ``1 - 0.05^(1/n)`` flips, about ``3 / n``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ptq_cli.evaluation.interval import CONFIDENCE, Flips, Interval, Method

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


# From values, and from them without one sample each, to how far unseen flips may move each.
Reach = Callable[[Sequence[Float64Array], Sequence[Float64Array]], Sequence[Unseen]]
MISSED = 0.05  # probability with which no sample shows what that share does
RULE_OF_THREE = -float(np.log(MISSED))  # expected flips that leave no trace with this probability
# Flips of equal weight: so many or fewer do not show what others are like; of twice as many a quarter of the
# unseen ones counts, of ten times as many a hundredth.
TRUSTED = 4.0


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


OfSums = Callable[[Float64Array], Float64Array]  # from sums over samples, [..., k], to values, [...]
ManyOfSums = Callable[[Float64Array], tuple[Float64Array, ...]]  # from such sums to values of several kinds
_OfWeights = Callable[[Float64Array], Float64Array]  # from how often each unit counts, [units], to [values]
RESAMPLES = 2000
SEED = 0
_BLOCK = 2**20  # drawn indices in memory at a time: 8 MiB
_MOST_WORK = 2_000_000_000  # elements that all evaluations of weights may read: about ten seconds
FEWEST_RESAMPLES = 400  # fewer leave too few values beyond an end to locate it
_GROUPS = 200  # units left out together, for the acceleration: single ones would need N evaluations
_HALVINGS = 60  # steps of a bisection of angles below pi / 2, until neighboring floats are left


def bootstrap_intervals(
    rows: Float64Array,
    of_sums: ManyOfSums,
    *,
    resamples: int = RESAMPLES,
    method: Method = "bootstrap",
    reach: Reach | None = None,
) -> tuple[Interval | None, ...]:
    """95 % interval of each value of ``sum of rows``: bias-corrected and accelerated bootstrap.

    A row holds what one sample adds to the sums. If it holds what the sample adds for each of two models,
    both are compared on the same drawn samples: the bootstrap is paired. ``reach`` tells how far flips that
    the samples do not show may move each value.

    Shapes: rows [N, k]; of_sums takes [..., k] and gives several [...].
    Units: those of each value. Time grows with N times ``resamples``, memory is ``rows`` and 16 MiB or, if
    that is more, 16 bytes for each sample.
    Edge case: None for fewer than two samples, or if the value itself is not finite. With few samples, about
    20, the interval is too narrow, because they do not represent the population.
    Source: Efron 1987, "Better bootstrap confidence intervals"; Efron and Tibshirani 1993, "An introduction
    to the bootstrap", section 14.3.

    Example:
        >>> rows = np.arange(100.0)[:, None]
        >>> mean, double = bootstrap_intervals(rows, lambda s: (s[..., 0] / 100, s[..., 0] / 50))
        >>> bool(43 < mean.low < 49.5 < mean.high < 56), bool(double.low == 2 * mean.low)
        (True, True)
    """
    total = rows.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = of_sums(total)
        if len(rows) < 2:
            return (None,) * len(values)
        drawn = of_sums(_resampled_sums(rows, resamples))
        left_out = of_sums(total - rows)
    return _intervals(values, left_out, drawn, method, reach)


def _intervals(
    values: Sequence[Float64Array],
    left_out: Sequence[Float64Array],
    drawn: Sequence[Float64Array],
    method: Method,
    reach: Reach | None,
) -> tuple[Interval | None, ...]:
    reaches = reach(values, left_out) if reach is not None else (None,) * len(values)
    return tuple(
        interval_of(float(value), left, found, method, own)
        for value, left, found, own in zip(values, left_out, drawn, reaches, strict=True)
    )


def interval_of(
    value: float,
    left_out: Float64Array,
    drawn: Float64Array,
    method: Method = "bootstrap",
    unseen: Unseen | None = None,
) -> Interval | None:
    """95 % interval from values of drawn samples, bias-corrected and accelerated.

    ``left_out`` are values without one sample, or one group of samples, each; ``drawn`` those of samples
    drawn with replacement; ``unseen`` how far flips that the samples do not show may move the value.

    Edge case: None if the value, or one of those drawn, is NaN. Equal outputs have an SQNR of inf, and so has
    each resample.
    Source: Efron 1987, "Better bootstrap confidence intervals".

    Example:
        >>> interval_of(0.0, np.zeros(4), np.linspace(-1, 1, 201)).method
        'bootstrap'
    """
    if np.isnan(value) or np.isnan(drawn).any():
        return None
    ordered = np.sort(drawn)
    below, above = _adjusted_ranks(ordered, value, _acceleration(left_out))
    low, high = float(ordered[below]), float(ordered[above])
    if unseen is not None:
        wider = with_unseen(drawn, left_out, unseen)
        low, high = min(low, wider[0]), max(high, wider[1])
    return Interval(low, high, method)


def _resampled_sums(rows: Float64Array, resamples: int) -> Float64Array:
    samples, width = rows.shape
    columns = np.ascontiguousarray(rows.T)  # gathered twice as fast
    generator = np.random.default_rng(SEED)
    together = max(1, _BLOCK // samples)
    sums = np.empty((resamples, width))
    for first in range(0, resamples, together):
        count = min(together, resamples - first)
        drawn = generator.integers(0, samples, size=(count, samples))
        for index, column in enumerate(columns):
            sums[first : first + count, index] = np.take(column, drawn).sum(axis=1)
    return sums


def _acceleration(left_out: Float64Array) -> float:
    """Rate at which the standard error changes with the value, from values without one sample each."""
    if not np.isfinite(left_out).all():
        return 0.0
    deviations = left_out.mean() - left_out
    squares = float(np.sum(deviations**2))
    return float(np.sum(deviations**3)) / (6 * squares**1.5) if squares > 0 else 0.0


def _adjusted_ranks(drawn: Float64Array, value: float, acceleration: float) -> tuple[int, int]:
    """Places of both ends among the sorted values."""
    normal, count = NormalDist(), len(drawn)
    share = (np.sum(drawn < value) + np.sum(drawn == value) / 2) / count
    bias = normal.inv_cdf(float(np.clip(share, 0.5 / count, 1 - 0.5 / count)))

    def rank(tail: float) -> int:
        shifted = bias + normal.inv_cdf(tail)
        # Beyond its pole the correction would swap the ends.
        scale = max(1 - acceleration * shifted, 1e-3)
        return min(count - 1, int(normal.cdf(bias + shifted / scale) * count))

    return rank((1 - CONFIDENCE) / 2), rank((1 + CONFIDENCE) / 2)


def count_flips(float_scores: Float64Array, quantized_scores: Float64Array) -> Flips:
    """Samples that only one of two models has right, from scores [N] of 0 and 1 of the same samples.

    Example:
        >>> count_flips(np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])).lost
        1
    """
    lost = int(np.count_nonzero(float_scores > quantized_scores))
    gained = int(np.count_nonzero(float_scores < quantized_scores))
    return Flips.counted(len(float_scores), lost, gained)


def resamples_within(cost: int) -> int:
    """Evaluations of ``cost`` elements that there is time for; 0 if they would be too few."""
    affordable = min(RESAMPLES, _MOST_WORK // max(1, cost))
    return affordable if affordable >= FEWEST_RESAMPLES else 0


def reweighed_intervals(
    units: int, of_weights: _OfWeights, *, resamples: int = RESAMPLES, reach: Reach | None = None
) -> tuple[Interval | None, ...]:
    """95 % interval of each value that is no function of sums, such as a rank: draws weigh the units.

    Otherwise as ``bootstrap_intervals``; units are samples, or pairs of them.

    Edge case: None for fewer than two units, and where a value is not finite.
    Source: Efron 1987, as ``bootstrap_intervals``; the acceleration from groups as in Efron and Tibshirani
    1993, section 11.5.

    Example:
        >>> values = np.arange(100.0)
        >>> (mean,) = reweighed_intervals(100, lambda weights: np.array([weights @ values / 100]))
        >>> bool(43 < mean.low < 49.5 < mean.high < 56)
        True
    """
    whole = of_weights(np.ones(units))
    if units < 2:
        return (None,) * len(whole)
    generator = np.random.default_rng(SEED)
    drawn = np.array(
        [
            of_weights(np.bincount(generator.integers(0, units, units), minlength=units).astype(np.float64))
            for _ in range(resamples)
        ]
    )
    group = np.arange(units) % min(_GROUPS, units)
    left_out = np.array([of_weights((group != index).astype(np.float64)) for index in range(group.max() + 1)])
    return _intervals(list(whole), list(left_out.T), list(drawn.T), "bootstrap", reach)


def mean_interval(values: Float64Array) -> Interval | None:
    """95 % interval of the mean that independent, about normal values [N] were drawn around.

    For few values the bootstrap's interval is too narrow: with five it includes the mean in 83 of 100 cases
    instead of 95, and one outlier moves it away.

    Edge case: None for fewer than two values, or if one is not finite. Equal values have an interval of width
    0.
    Source: Student 1908, "The probable error of a mean".

    Example:
        >>> interval = mean_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
        >>> round(interval.low, 4), round(interval.high, 4)
        (1.0368, 4.9632)
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    mean, error = float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5
    half = student_quantile(len(values) - 1) * error
    return Interval(mean - half, mean + half, "student")


def student_quantile(freedom: int) -> float:
    """Standard errors that Student's t does not exceed in 95 % of cases, by its degrees of freedom.

    Source: Abramowitz and Stegun 1964, "Handbook of mathematical functions", 26.7.3 and 26.7.4.

    Example:
        >>> [round(student_quantile(freedom), 3) for freedom in (1, 2, 4, 19)]
        [12.706, 4.303, 2.776, 2.093]
    """
    low, high = 0.0, np.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _held(middle, freedom) < CONFIDENCE else (low, middle)
    return float(np.tan(low) * np.sqrt(freedom))


def _held(angle: float, freedom: int) -> float:
    """Share of the distribution within t = tan(angle) * sqrt(freedom)."""
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = freedom % 2 == 1
    # 1, then cos² · 1/2, · 3/4, … of an even number; of an odd one cos, then cos² · 2/3, · 4/5, …
    steps = np.arange(2 if odd else 1, freedom - 2 if odd else freedom - 1, 2)
    terms = np.cumprod(cosine**2 * steps / (steps + 1))
    if not odd:
        return float(sine * (1 + terms.sum()))
    series = sine * cosine * (1 + terms.sum()) if freedom > 1 else 0.0
    return float(2 / np.pi * (angle + series))
