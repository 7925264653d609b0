"""Intervals of values that are computed from sums over samples, by resampling."""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ptq_cli.evaluation.interval import CONFIDENCE, Flips, Interval, Method
from ptq_cli.evaluation.unseen_flips import Reach, Unseen, with_unseen

Float64Array = npt.NDArray[np.float64]
OfSums = Callable[[Float64Array], Float64Array]
"""From sums over samples, [..., k], to the metric's values, [...]."""
ManyOfSums = Callable[[Float64Array], tuple[Float64Array, ...]]  # likewise, to several values

RESAMPLES = 2000
SEED = 0
BLOCK = 2**20  # number of drawn indices in memory at a time: 8 MiB


def bootstrap_intervals(
    rows: Float64Array,
    of_sums: ManyOfSums,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    method: Method = "bootstrap",
    reach: Reach | None = None,
) -> tuple[Interval | None, ...]:
    """95 % interval of each value of ``sum of rows``: bias-corrected and accelerated bootstrap.

    A row holds what one sample adds to the sums. If it holds what the sample adds for each of two models,
    both are compared on the same drawn samples: the bootstrap is paired.

    Args:
        rows: what each sample adds.
        of_sums: the values; it is given many sums at once.
        resamples: how many times the samples are drawn, with replacement.
        seed: seed of the draws; the same seed gives the same intervals.
        method: what the intervals say they are.
        reach: how far flips that the samples do not show may move each value; None to leave them out.

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
        drawn = of_sums(_resampled_sums(rows, resamples, seed))
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

    Args:
        value: of all samples.
        left_out: values without one sample each, or without one group of samples each.
        drawn: values of samples drawn with replacement.
        method: what the interval says it is.
        unseen: how far flips that the samples do not show may move the value.

    Shapes: left_out [groups]; drawn [resamples].
    Units: those of the value.
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


def _resampled_sums(rows: Float64Array, resamples: int, seed: int) -> Float64Array:
    samples, width = rows.shape
    columns = np.ascontiguousarray(rows.T)  # gathered twice as fast
    generator = np.random.default_rng(seed)
    together = max(1, BLOCK // samples)
    sums = np.empty((resamples, width))
    for first in range(0, resamples, together):
        count = min(together, resamples - first)
        drawn = generator.integers(0, samples, size=(count, samples))
        for index, column in enumerate(columns):
            sums[first : first + count, index] = np.take(column, drawn).sum(axis=1)
    return sums


def _acceleration(left_out: Float64Array) -> float:
    """Return how fast the standard error changes with the value, from values without one sample each."""
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


# What the scores of two models on the same samples tell about the drop.


def count_flips(float_scores: Float64Array, quantized_scores: Float64Array) -> Flips:
    """Return how many samples only one of the models has right.

    Shapes: both [N] of 0 (wrong) and 1 (right), in the same order; N is at least 1.
    Units: samples.
    Edge case: Models that are right on the same samples have no flips.
    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions or
    percentages".

    Example:
        >>> count_flips(np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])).lost
        1
    """
    lost = int(np.count_nonzero(float_scores > quantized_scores))
    gained = int(np.count_nonzero(float_scores < quantized_scores))
    return Flips.counted(len(float_scores), lost, gained)


# Intervals of values that are not functions of sums, such as ranks: draws are weights of the samples.


OfWeights = Callable[[Float64Array], Float64Array]
"""From how often each unit counts, [units], to one value or several, [values]."""

MOST_WORK = 2_000_000_000  # elements that all evaluations together may read: about ten seconds

FEWEST_RESAMPLES = 400  # fewer resamples leave too few values beyond an end to locate it

GROUPS = 200
"""Groups of units that are left out in turn, for the acceleration; single units would need N evaluations."""


def resamples_within(cost: int) -> int:
    """Return how many evaluations of ``cost`` elements there is time for; 0 if they would be too few."""
    affordable = min(RESAMPLES, MOST_WORK // max(1, cost))
    return affordable if affordable >= FEWEST_RESAMPLES else 0


def reweighed_intervals(
    units: int,
    of_weights: OfWeights,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    reach: Reach | None = None,
) -> tuple[Interval | None, ...]:
    """95 % interval of each value: bias-corrected and accelerated bootstrap.

    Args:
        units: how many samples there are, or pairs of them.
        of_weights: the values.
        resamples: how many times the units are drawn, with replacement.
        seed: seed of the draws; the same seed gives the same interval.
        reach: how far flips that the samples do not show may move each value; None to leave them out.

    Shapes: of_weights takes [units] and gives [values].
    Units: those of the values.
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
    generator = np.random.default_rng(seed)
    drawn = np.array(
        [
            of_weights(np.bincount(generator.integers(0, units, units), minlength=units).astype(np.float64))
            for _ in range(resamples)
        ]
    )
    group = np.arange(units) % min(GROUPS, units)
    left_out = np.array([of_weights((group != index).astype(np.float64)) for index in range(group.max() + 1)])
    return _intervals(list(whole), list(left_out.T), list(drawn.T), "bootstrap", reach)


# The interval of a mean of few values: Student's.


HALVINGS = 60  # of an angle below pi / 2, until neighboring floats are left


def mean_interval(values: Float64Array) -> Interval | None:
    """95 % interval of the mean that the values were drawn around.

    Args:
        values: independent and about normal. For few values the bootstrap's interval is too narrow:
            with five it includes the mean in 83 of 100 cases instead of 95, and one outlier moves it away.

    Shapes: values [N].
    Units: those of the values.
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
    """Magnitude that Student's t does not exceed in 95 % of cases.

    Args:
        freedom: degrees of freedom, at least 1.

    Units: standard errors.
    Edge case: 1.96, the normal distribution's, for infinitely many.
    Source: Abramowitz and Stegun 1964, "Handbook of mathematical functions", 26.7.3 and 26.7.4.

    Example:
        >>> [round(student_quantile(freedom), 3) for freedom in (1, 2, 4, 19)]
        [12.706, 4.303, 2.776, 2.093]
    """
    low, high = 0.0, np.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _held(middle, freedom) < CONFIDENCE else (low, middle)
    return float(np.tan(low) * np.sqrt(freedom))


def _held(angle: float, freedom: int) -> float:
    """Return how much of the distribution lies within t = tan(angle) * sqrt(freedom)."""
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = freedom % 2 == 1
    # 1, then cos² · 1/2, · 3/4, … of an even number; of an odd one cos, then cos² · 2/3, · 4/5, …
    steps = np.arange(2 if odd else 1, freedom - 2 if odd else freedom - 1, 2)
    terms = np.cumprod(cosine**2 * steps / (steps + 1))
    if not odd:
        return float(sine * (1 + terms.sum()))
    series = sine * cosine * (1 + terms.sum()) if freedom > 1 else 0.0
    return float(2 / np.pi * (angle + series))
