"""The interval of a drop between two shares of the same samples."""

import math

from ptq_cli.report.intervals.flips import Flips
from ptq_cli.report.intervals.interval import NORMAL_QUANTILE, TOLERANCE, Interval, rounded_up

HALVINGS = 60
"""Of a range of 2: the ends are then exact to 2^-59."""


def score_statistic(flips: Flips, drop: float) -> float:
    """Return how many standard errors the observed drop is above ``drop``, if that were the true drop.

    At ``drop = 0`` it is McNemar's ``(lost - gained) / sqrt(lost + gained)``. The standard error is that of
    the likeliest population with the given drop, not that of the samples: that is 0 if nothing flipped.

    Units:
        standard errors; falls as ``drop`` grows.

    Edge case:
        0 if the samples have exactly this drop; infinite at a drop that the samples rule out.

    Source:
        Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the
        paired-sample design", Statistics in Medicine 17, section 3.

    Example:
        >>> score_statistic(Flips.counted(100, lost=6, gained=3), drop=0.0)
        1.0
    """
    if drop < 0:
        return -_statistic(flips.samples, flips.gained, flips.lost, -drop)
    return _statistic(flips.samples, flips.lost, flips.gained, drop)


def drop_interval(flips: Flips) -> Interval:
    """Return the drops that the score test does not reject: the 95 % interval of the drop.

    This is not the interval of the exact test, which takes the number of flips as given: that has no width
    if nothing flipped, and never includes a drop above the share that did.

    Units:
        shares, -1 to 1.

    Edge case:
        Without a flip it is about ± 3.84 / samples.

    Source:
        Tango 1998, as ``score_statistic``.

    Example:
        >>> interval = drop_interval(Flips.counted(21, lost=1, gained=7))
        >>> round(interval.low, 3), round(interval.high, 3)
        (-0.517, -0.026)
    """
    return Interval(_end(flips, NORMAL_QUANTILE, -1.0), _end(flips, -NORMAL_QUANTILE, 1.0), "score")


def largest_drop(flips: Flips, quantile: float) -> float:
    """Return the largest drop that the one-sided score test does not reject.

    Args:
        flips: what was seen.
        quantile: of the standard normal distribution, such as 1.645 for a level of 5 %.

    Units:
        a share, -1 to 1.

    Edge case:
        Without a flip it is ``quantile² / (samples + quantile²)``.

    Source:
        Tango 1998, as ``score_statistic``.

    Example:
        >>> round(largest_drop(Flips.counted(512, lost=0, gained=0), 1.96), 4)
        0.0074
    """
    return _end(flips, -quantile, 1.0)


def samples_to_resolve(flips: Flips, limit: float) -> int | None:
    """Return about how many samples it takes until the interval of the drop ends at ``limit``.

    That is exact for the score interval if the shares of flips stay as they are, because the statistic then
    grows with the square root of the number of samples.

    Units:
        the total number of samples, not additional ones.

    Edge case:
        None if the drop is the limit, within 1e-9, because no number is enough.

    Source:
        Tango 1998, as ``score_statistic``.

    Example:
        >>> samples_to_resolve(Flips.counted(100, lost=0, gained=0), limit=0.01)
        381
    """
    if abs(flips.drop - limit) <= TOLERANCE:
        return None
    statistic = score_statistic(flips, limit)
    return rounded_up(flips.samples * (NORMAL_QUANTILE / statistic) ** 2)


def _statistic(samples: int, lost: int, gained: int, drop: float) -> float:
    """Return the statistic for a drop that is not negative."""
    distance = lost - gained - samples * drop
    if distance == 0:
        return 0.0
    variance = samples * (2 * _likeliest_gained(samples, lost, gained, drop) + drop * (1 - drop))
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _likeliest_gained(samples: int, lost: int, gained: int, drop: float) -> float:
    """Return the likeliest share of gained samples if the share of lost ones is ``drop`` above it."""
    half = (2 * samples - lost + gained) * drop - lost - gained
    constant = gained * drop * (1 - drop)
    root = math.sqrt(half * half + 8 * samples * constant)
    # The root of 2 samples q² + half q - constant; written so that nothing cancels.
    if half <= 0:
        return (root - half) / (4 * samples)
    return 2 * constant / (root + half)


def _end(flips: Flips, wanted: float, outer: float) -> float:
    """Return the drop between the observed one and ``outer`` whose statistic is ``wanted``."""
    inner = flips.drop
    for _ in range(HALVINGS):
        middle = (inner + outer) / 2
        if abs(score_statistic(flips, middle)) <= abs(wanted):
            inner = middle
        else:
            outer = middle
    return inner
