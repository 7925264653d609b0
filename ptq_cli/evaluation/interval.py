"""A confidence interval as a value."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from ptq_cli.core.documents import AtLeast

Method = Literal["score", "wilson", "student", "bootstrap", "blocks"]

CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054
"""Of the standard normal distribution at 0.975. A constant, since ``statistics`` is slow to import."""

TOLERANCE = 1e-9
"""0.83 - 0.82 is 0.010000000000000009 in floating point, and a limit of 0.01 must hold it. Shares of fewer
than 10^9 samples differ by more than this, so it never lets a further wrong sample pass."""


@dataclass(frozen=True)
class Interval:
    """A range for the true value, if samples were drawn again and again from the same population."""

    low: Annotated[float, "The lower end."]
    high: Annotated[float, "The upper end, not below low."]
    method: Annotated[
        Method,
        '"score" (Tango) for the difference of two paired shares, "wilson" for one share, "student" for a '
        'ratio of times, "bootstrap" otherwise; "blocks" if blocks of samples were drawn instead of '
        "samples.",
    ]
    confidence: Annotated[float, "The share of such intervals that hold the true value."] = CONFIDENCE


ANYWHERE = Interval(-math.inf, math.inf, "bootstrap")
"""Where the true value lies if the samples do not tell: one sample does not show how much samples differ."""


def samples_for_width(samples: int, value: float, interval: Interval, limit: float) -> int | None:
    """Return about how many samples an interval would need to end at ``limit``.

    The side of the interval that faces the limit shrinks with the square root of the number of samples.

    Units: the total number of samples, not additional ones.
    Edge case: None if the value is the limit, within 1e-9, because no number is enough, and if an end is not
    finite. 1 if the interval has no width.
    Source: Cochran 1977, "Sampling techniques", chapter 4.

    Example:
        >>> samples_for_width(100, 0.5, Interval(0.4, 0.6, "bootstrap"), limit=0.55)
        400
    """
    side = interval.high - value if limit > value else value - interval.low
    gap = abs(limit - value)
    return rounded_up(samples * (side / gap) ** 2) if gap > TOLERANCE else None


def rounded_up(samples: float) -> int | None:
    """A number of samples as an integer, at least 1; None if it is not finite.

    Example:
        >>> rounded_up(379.2), rounded_up(0.0), rounded_up(math.inf)
        (380, 1, None)
    """
    return max(1, math.ceil(samples)) if math.isfinite(samples) else None


# Samples that only one of two models gets right, and the exact test on them.


Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True)
class Flips:
    """How many samples were right before and wrong after quantization, and the other way round.

    Only these make the models' shares differ: samples on which both agree cancel.
    """

    samples: Annotated[Annotated[int, AtLeast(1)], "How many both models saw."]
    lost: Annotated[Count, "Right by the float model alone."]
    gained: Annotated[Count, "Right by the quantized model alone."]
    p_value: Annotated[float, "P-value of the exact McNemar test; see mcnemar_p_value."]

    @classmethod
    def counted(cls, samples: int, lost: int, gained: int) -> "Flips":
        """Counts with their test."""
        return cls(samples, lost, gained, mcnemar_p_value(lost, gained))

    @property
    def drop(self) -> float:
        """The share before minus the share after."""
        return (self.lost - self.gained) / self.samples


def mcnemar_p_value(lost: int, gained: int) -> float:
    """Return how likely flips at least as one-sided are if quantization favors neither side.

    Each flip is then a toss of a coin: ``min(1, 2 P(X <= min(lost, gained)))`` for X binomial with
    ``lost + gained`` tosses. Computed in integers, so exact except for one division.

    Args:
        lost: samples that were right and are wrong.
        gained: samples that were wrong and are right.

    Units: a probability, two-sided.
    Edge case: 1 without any flip.
    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions or
    percentages"; the exact form as in Fagerland, Lydersen and Laake 2014, "Recommended tests and confidence
    intervals for paired binomial proportions", section 4.2.

    Example:
        >>> mcnemar_p_value(7, 1)
        0.0703125
    """
    flips, fewer = lost + gained, min(lost, gained)
    ways = total = 1
    for count in range(1, fewer + 1):
        ways = ways * (flips - count + 1) // count
        total += ways
    # Not 2**flips, whose type depends on the sign of the exponent.
    return min(1.0, 2 * total / (1 << flips))


# The interval of a drop between two shares of the same samples.


HALVINGS = 60  # of a range of 2: the ends are then exact to 2^-59


def score_statistic(flips: Flips, drop: float) -> float:
    """Return how many standard errors the observed drop is above ``drop``, if that were the true drop.

    At ``drop = 0`` it is McNemar's ``(lost - gained) / sqrt(lost + gained)``. The standard error is that of
    the likeliest population with the given drop, not that of the samples: that is 0 if nothing flipped.

    Units: standard errors; falls as ``drop`` grows.
    Edge case: 0 if the samples have exactly this drop; infinite at a drop that the samples rule out.
    Source: Tango 1998, "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design", Statistics in Medicine 17, section 3.

    Example:
        >>> score_statistic(Flips.counted(100, lost=6, gained=3), drop=0.0)
        1.0
    """
    if drop < 0:
        return -_statistic(flips.samples, flips.gained, flips.lost, -drop)
    return _statistic(flips.samples, flips.lost, flips.gained, drop)


def drop_interval(flips: Flips) -> Interval:
    """Drops that the score test does not reject: the 95 % interval of the drop.

    This is not the interval of the exact test, which takes the number of flips as given: that has no width
    if nothing flipped, and never includes a drop above the share that did.

    Units: shares, -1 to 1.
    Edge case: Without a flip it is about ± 3.84 / samples.
    Source: Tango 1998, as ``score_statistic``.

    Example:
        >>> interval = drop_interval(Flips.counted(21, lost=1, gained=7))
        >>> round(interval.low, 3), round(interval.high, 3)
        (-0.517, -0.026)
    """
    return Interval(_end(flips, NORMAL_QUANTILE, -1.0), _end(flips, -NORMAL_QUANTILE, 1.0), "score")


def largest_drop(flips: Flips, quantile: float) -> float:
    """Largest drop that the one-sided score test does not reject.

    Args:
        flips: what was seen.
        quantile: of the standard normal distribution, such as 1.645 for a level of 5 %.

    Units: a share, -1 to 1.
    Edge case: Without a flip it is ``quantile² / (samples + quantile²)``.
    Source: Tango 1998, as ``score_statistic``.

    Example:
        >>> round(largest_drop(Flips.counted(512, lost=0, gained=0), 1.96), 4)
        0.0074
    """
    return _end(flips, -quantile, 1.0)


def samples_to_resolve(flips: Flips, limit: float) -> int | None:
    """Return about how many samples it takes until the interval of the drop ends at ``limit``.

    That is exact for the score interval if the shares of flips stay as they are, because the statistic then
    grows with the square root of the number of samples.

    Units: the total number of samples, not additional ones.
    Edge case: None if the drop is the limit, within 1e-9, because no number is enough.
    Source: Tango 1998, as ``score_statistic``.

    Example:
        >>> samples_to_resolve(Flips.counted(100, lost=0, gained=0), limit=0.01)
        381
    """
    if abs(flips.drop - limit) <= TOLERANCE:
        return None
    statistic = score_statistic(flips, limit)
    return rounded_up(flips.samples * (NORMAL_QUANTILE / statistic) ** 2)


def _statistic(samples: int, lost: int, gained: int, drop: float) -> float:
    """Statistic for a drop that is not negative."""
    distance = lost - gained - samples * drop
    if distance == 0:
        return 0.0
    variance = samples * (2 * _likeliest_gained(samples, lost, gained, drop) + drop * (1 - drop))
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _likeliest_gained(samples: int, lost: int, gained: int, drop: float) -> float:
    """Likeliest share of gained samples if the share of lost ones is ``drop`` above it."""
    half = (2 * samples - lost + gained) * drop - lost - gained
    constant = gained * drop * (1 - drop)
    root = math.sqrt(half * half + 8 * samples * constant)
    # The root of 2 samples q² + half q - constant; written so that nothing cancels.
    if half <= 0:
        return (root - half) / (4 * samples)
    return 2 * constant / (root + half)


def _end(flips: Flips, wanted: float, outer: float) -> float:
    """Drop between the observed one and ``outer`` whose statistic is ``wanted``."""
    inner = flips.drop
    for _ in range(HALVINGS):
        middle = (inner + outer) / 2
        if abs(score_statistic(flips, middle)) <= abs(wanted):
            inner = middle
        else:
            outer = middle
    return inner


# The interval of one model's share of samples.


def share_interval(share: float, samples: int) -> Interval:
    """95 % interval of a share, by Wilson's score.

    Args:
        share: the share of the samples, such as those whose class is right.
        samples: how many samples there are, at least 1.

    Units: a share, 0 to 1.
    Edge case: A share of 0 or 1 also has an interval with a width.
    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Example:
        >>> interval = share_interval(0.8, 100)
        >>> round(interval.low, 4), round(interval.high, 4)
        (0.7112, 0.8666)
    """
    center, half = _wilson(share, samples, NORMAL_QUANTILE)
    return Interval(max(0.0, center - half), min(1.0, center + half), "wilson")


def smallest_share(share: float, samples: int, quantile: float) -> float:
    """Smallest share that Wilson's one-sided score test does not reject.

    Args:
        share: the share of the samples, such as those that agree.
        samples: how many samples there are, at least 1.
        quantile: of the standard normal distribution, such as 1.645 for a level of 5 %.

    Units: a share, 0 to 1.
    Edge case: Of a share of 1 it is ``samples / (samples + quantile²)``.
    Source: Wilson 1927, as ``share_interval``.

    Example:
        >>> round(smallest_share(1.0, 512, 1.96), 4)
        0.9926
    """
    center, half = _wilson(share, samples, quantile)
    return max(0.0, center - half)


def _wilson(share: float, samples: int, quantile: float) -> tuple[float, float]:
    """Middle of an interval, and half of its width."""
    square = quantile**2 / samples
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return (share + square / 2) / (1 + square), half


def samples_to_resolve_share(share: float, limit: float) -> int | None:
    """Return how many samples it takes until the interval of a share ends at ``limit``.

    Units: the total number of samples, not additional ones.
    Edge case: None if the share is the limit, within 1e-9, because no number is enough. 1 for a limit of 0 or
    1.
    Source: Wilson 1927, as ``share_interval``.

    Example:
        >>> samples_to_resolve_share(0.82, limit=0.8)
        1537
    """
    gap = abs(share - limit)
    if gap <= TOLERANCE:
        return None
    return rounded_up(max(0.0, limit * (1 - limit)) * (NORMAL_QUANTILE / gap) ** 2)
