"""Confidence intervals in closed form: Wilson's of one share, Tango's of the drop between two paired shares.

``Interval`` is what all intervals of a report are; McNemar's test stands with the flips that it tests.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from ptq_cli.core.documents import AtLeast

Method = Literal["score", "wilson", "student", "bootstrap", "blocks"]
_Count = Annotated[int, AtLeast(0)]
CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054  # standard normal, at 0.975; a constant: ``statistics`` is slow to import
# Slack of limits: 0.83 - 0.82 is 0.010000000000000009 in floating point, and a limit of 0.01 must hold it.
# Shares of fewer than 10^9 samples differ by more, so it never lets a further wrong sample pass.
TOLERANCE = 1e-9
_HALVINGS = 60  # steps of a bisection of drops from -1 to 1: ends are then exact to 2^-59


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


ANYWHERE = Interval(-math.inf, math.inf, "bootstrap")  # nothing tells, as of one sample alone


@dataclass(frozen=True)
class Flips:
    """How many samples were right before and wrong after quantization, and the other way round.

    Only these make the models' shares differ: samples on which both agree cancel.
    """

    samples: Annotated[Annotated[int, AtLeast(1)], "How many both models saw."]
    lost: Annotated[_Count, "Right by the float model alone."]
    gained: Annotated[_Count, "Right by the quantized model alone."]
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
    """Two-sided probability of flips at least as one-sided if quantization favors no side; 1 without any.

    Each flip is then a toss of a coin: ``min(1, 2 P(X <= min(lost, gained)))`` for X binomial with
    ``lost + gained`` tosses. Computed in integers, so exact except for one division.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions or
    percentages"; the exact form as in Fagerland, Lydersen and Laake 2014, "Recommended tests and confidence
    intervals for paired binomial proportions", section 4.2.

    Example:
        >>> mcnemar_p_value(7, 1)
        0.0703125
    """
    flips = lost + gained
    ways = total = 1
    for count in range(1, min(lost, gained) + 1):  # binomials one from the other: ``math.comb`` takes minutes
        ways = ways * (flips - count + 1) // count
        total += ways
    # Not 2**flips, whose type depends on the sign of the exponent.
    return min(1.0, 2 * total / (1 << flips))


def score_statistic(flips: Flips, drop: float) -> float:
    """Standard errors by which the observed drop is above ``drop``, if that were the true drop.

    At ``drop = 0`` it is McNemar's ``(lost - gained) / sqrt(lost + gained)``. The standard error is that of
    the likeliest population with the given drop, not that of the samples: that is 0 if nothing flipped.

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
    return (root - half) / (4 * samples) if half <= 0 else 2 * constant / (root + half)


def _end(flips: Flips, wanted: float, outer: float) -> float:
    """Drop between the observed one and ``outer`` whose statistic is ``wanted``."""
    inner = flips.drop
    for _ in range(_HALVINGS):
        middle = (inner + outer) / 2
        if abs(score_statistic(flips, middle)) <= abs(wanted):
            inner = middle
        else:
            outer = middle
    return inner


def drop_interval(flips: Flips) -> Interval:
    """95 % interval of the drop, a share from -1 to 1: the drops that Tango's score test does not reject.

    Not the interval of the exact test, which takes the number of flips as given: that has no width if nothing
    flipped, and never includes a drop above the share that did.

    Edge case: Without a flip it is about ± 3.84 / samples.

    Example:
        >>> interval = drop_interval(Flips.counted(21, lost=1, gained=7))
        >>> round(interval.low, 3), round(interval.high, 3)
        (-0.517, -0.026)
    """
    return Interval(_end(flips, NORMAL_QUANTILE, -1.0), _end(flips, -NORMAL_QUANTILE, 1.0), "score")


def largest_drop(flips: Flips, quantile: float) -> float:
    """Largest drop that Tango's one-sided score test does not reject at a quantile of the standard normal.

    Edge case: Without a flip it is ``quantile² / (samples + quantile²)``.

    Example:
        >>> round(largest_drop(Flips.counted(512, lost=0, gained=0), 1.96), 4)
        0.0074
    """
    return _end(flips, -quantile, 1.0)


def share_interval(share: float, samples: int) -> Interval:
    """95 % interval of a share of at least one sample, by Wilson's score; 0 and 1 have one with a width, too.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Example:
        >>> interval = share_interval(0.8, 100)
        >>> round(interval.low, 4), round(interval.high, 4)
        (0.7112, 0.8666)
    """
    center, half = _wilson(share, samples, NORMAL_QUANTILE)
    return Interval(max(0.0, center - half), min(1.0, center + half), "wilson")


def smallest_share(share: float, samples: int, quantile: float) -> float:
    """Smallest share that Wilson's one-sided score test does not reject at a quantile of the standard normal.

    Edge case: Of a share of 1 it is ``samples / (samples + quantile²)``.

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


def samples_for_width(samples: int, value: float, interval: Interval, limit: float) -> int | None:
    """About how many samples in all an interval needs to end at ``limit``; None if no number is enough.

    The side of the interval that faces the limit shrinks with the square root of the number of samples.

    Edge case: None if the value is the limit, within 1e-9, or an end is not finite. 1 of an interval without
    width.
    Source: Cochran 1977, "Sampling techniques", chapter 4.

    Example:
        >>> samples_for_width(100, 0.5, Interval(0.4, 0.6, "bootstrap"), limit=0.55)
        400
    """
    side = interval.high - value if limit > value else value - interval.low
    gap = abs(limit - value)
    return rounded_up(samples * (side / gap) ** 2) if gap > TOLERANCE else None


def samples_to_resolve(flips: Flips, limit: float) -> int | None:
    """About how many samples in all it takes until Tango's interval of the drop ends at ``limit``.

    Exact if the shares of flips stay as they are: the statistic then grows with the root of the number.

    Edge case: None if the drop is the limit, within 1e-9, because no number is enough.

    Example:
        >>> samples_to_resolve(Flips.counted(100, lost=0, gained=0), limit=0.01)
        381
    """
    if abs(flips.drop - limit) <= TOLERANCE:
        return None
    return rounded_up(flips.samples * (NORMAL_QUANTILE / score_statistic(flips, limit)) ** 2)


def samples_to_resolve_share(share: float, limit: float) -> int | None:
    """How many samples in all it takes until Wilson's interval of a share ends at ``limit``.

    Edge case: None if the share is the limit, within 1e-9, because no number is enough. 1 for a limit of 0 or
    1.

    Example:
        >>> samples_to_resolve_share(0.82, limit=0.8)
        1537
    """
    gap = abs(share - limit)
    if gap <= TOLERANCE:
        return None
    return rounded_up(max(0.0, limit * (1 - limit)) * (NORMAL_QUANTILE / gap) ** 2)


def rounded_up(samples: float) -> int | None:
    """A number of samples as an integer, at least 1; None if it is not finite.

    Example:
        >>> rounded_up(379.2), rounded_up(0.0), rounded_up(math.inf)
        (380, 1, None)
    """
    return max(1, math.ceil(samples)) if math.isfinite(samples) else None
