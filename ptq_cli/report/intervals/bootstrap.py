"""Intervals of values that are computed from sums over samples, by resampling."""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ptq_cli.report.intervals.interval import CONFIDENCE, Interval, Method

Float64Array = npt.NDArray[np.float64]
OfSums = Callable[[Float64Array], Float64Array]
"""From sums over samples, [..., k], to the metric's values, [...]."""
ManyOfSums = Callable[[Float64Array], tuple[Float64Array, ...]]
"""Likewise, to several values."""

RESAMPLES = 2000
SEED = 0
BLOCK = 2**20
"""Number of drawn indices in memory at a time: 8 MiB."""


def bootstrap_interval(
    rows: Float64Array, of_sums: OfSums, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """Return the 95 % interval of ``of_sums(sum of rows)``: bias-corrected and accelerated bootstrap.

    A row holds what one sample adds to the sums. If it holds what the sample adds for each of two models,
    both are compared on the same drawn samples: the bootstrap is paired.

    Args:
        rows: what each sample adds.
        of_sums: the metric's value; it is given many sums at once.
        resamples: how many times the samples are drawn, with replacement.
        seed: seed of the draws; the same seed gives the same interval.

    Shapes:
        rows [N, k]; of_sums takes [..., k] and gives [...].

    Units:
        those of the metric. Time grows with N times ``resamples``, memory is ``rows`` and 16 MiB or, if that
        is more, 16 bytes for each sample.

    Edge case:
        None for fewer than two samples, or if the value itself is not finite. With few samples, about 20,
        the interval is too narrow, because they do not represent the population.

    Source:
        Efron 1987, "Better bootstrap confidence intervals"; Efron and Tibshirani 1993, "An introduction to
        the bootstrap", section 14.3.

    Example:
        >>> rows = np.arange(100.0)[:, None]
        >>> interval = bootstrap_interval(rows, lambda sums: sums[..., 0] / 100)
        >>> bool(43 < interval.low < 49.5 < interval.high < 56)
        True
    """
    return bootstrap_intervals(rows, lambda sums: (of_sums(sums),), resamples=resamples, seed=seed)[0]


def bootstrap_intervals(
    rows: Float64Array,
    of_sums: ManyOfSums,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    method: Method = "bootstrap",
) -> tuple[Interval | None, ...]:
    """Return the interval of each of several values of sums, as ``bootstrap_interval``, from the same draws.

    Shapes:
        rows [N, k]; of_sums takes [..., k] and gives several [...].

    Units:
        those of each value.

    Edge case:
        As ``bootstrap_interval``.

    Source:
        Efron 1987, as ``bootstrap_interval``.

    Example:
        >>> rows = np.arange(100.0)[:, None]
        >>> mean, double = bootstrap_intervals(rows, lambda s: (s[..., 0] / 100, s[..., 0] / 50))
        >>> bool(double.low == 2 * mean.low)
        True
    """
    total = rows.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = of_sums(total)
        if len(rows) < 2:
            return (None,) * len(values)
        drawn = of_sums(_resampled_sums(rows, resamples, seed))
        left_out = of_sums(total - rows)
    return tuple(
        interval_of(float(value), left, found, method)
        for value, left, found in zip(values, left_out, drawn, strict=True)
    )


def interval_of(
    value: float, left_out: Float64Array, drawn: Float64Array, method: Method = "bootstrap"
) -> Interval | None:
    """Return the 95 % interval from values of drawn samples, bias-corrected and accelerated.

    Args:
        value: of all samples.
        left_out: values without one sample each, or without one group of samples each.
        drawn: values of samples drawn with replacement.
        method: what the interval says it is.

    Shapes:
        left_out [groups]; drawn [resamples].

    Units:
        those of the value.

    Edge case:
        None if the value, or one of those drawn, is NaN. Equal outputs have an SQNR of inf, and so has
        each resample.

    Source:
        Efron 1987, "Better bootstrap confidence intervals".

    Example:
        >>> interval_of(0.0, np.zeros(4), np.linspace(-1, 1, 201)).method
        'bootstrap'
    """
    if np.isnan(value) or np.isnan(drawn).any():
        return None
    ordered = np.sort(drawn)
    below, above = _adjusted_ranks(ordered, value, _acceleration(left_out))
    return Interval(float(ordered[below]), float(ordered[above]), method)


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
    """Return the places of both ends among the sorted values."""
    normal, count = NormalDist(), len(drawn)
    share = (np.sum(drawn < value) + np.sum(drawn == value) / 2) / count
    bias = normal.inv_cdf(float(np.clip(share, 0.5 / count, 1 - 0.5 / count)))

    def rank(tail: float) -> int:
        shifted = bias + normal.inv_cdf(tail)
        # Beyond its pole the correction would swap the ends.
        scale = max(1 - acceleration * shifted, 1e-3)
        return min(count - 1, int(normal.cdf(bias + shifted / scale) * count))

    return rank((1 - CONFIDENCE) / 2), rank((1 + CONFIDENCE) / 2)
