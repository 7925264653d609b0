"""A confidence interval as a value."""

import math
from dataclasses import dataclass
from typing import Literal

Method = Literal["score", "wilson", "student", "bootstrap", "blocks"]

CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054
"""Of the standard normal distribution at 0.975. A constant, since ``statistics`` is slow to import."""

TOLERANCE = 1e-9
"""0.83 - 0.82 is 0.010000000000000009 in floating point, and a limit of 0.01 must hold it. Shares of fewer
than 10^9 samples differ by more than this, so it never lets a further wrong sample pass."""


@dataclass(frozen=True)
class Interval:
    """A range for the true value, if samples were drawn again and again from the same population.

    Attributes:
        low: the lower end.
        high: the upper end, not below ``low``.
        method: ``"score"`` (Tango) for the difference of two paired shares, ``"wilson"`` for one share,
            ``"student"`` for a ratio of times, ``"bootstrap"`` otherwise; ``"blocks"`` if blocks of
            samples were drawn instead of samples.
        confidence: the share of such intervals that hold the true value.

    Example:
        >>> Interval(-0.01, 0.02, "score").confidence
        0.95
    """

    low: float
    high: float
    method: Method
    confidence: float = CONFIDENCE


ANYWHERE = Interval(-math.inf, math.inf, "bootstrap")
"""Where the true value lies if the samples do not tell: one sample does not show how much samples differ."""


def samples_for_width(samples: int, value: float, interval: Interval, limit: float) -> int | None:
    """Return about how many samples an interval would need to end at ``limit``.

    The side of the interval that faces the limit shrinks with the square root of the number of samples.

    Units:
        the total number of samples, not additional ones.

    Edge case:
        None if the value is the limit, within 1e-9, because no number is enough, and if an end is not finite.
        1 if the interval has no width.

    Source:
        Cochran 1977, "Sampling techniques", chapter 4.

    Example:
        >>> samples_for_width(100, 0.5, Interval(0.4, 0.6, "bootstrap"), limit=0.55)
        400
    """
    side = interval.high - value if limit > value else value - interval.low
    gap = abs(limit - value)
    return rounded_up(samples * (side / gap) ** 2) if gap > TOLERANCE else None


def rounded_up(samples: float) -> int | None:
    """Return a number of samples as an integer, at least 1; None if it is not finite.

    Example:
        >>> rounded_up(379.2), rounded_up(0.0), rounded_up(math.inf)
        (380, 1, None)
    """
    return max(1, math.ceil(samples)) if math.isfinite(samples) else None
