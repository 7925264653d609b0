"""The interval of a mean of few values: Student's."""

import numpy as np

from ptq_cli.report.intervals.bootstrap import Float64Array
from ptq_cli.report.intervals.interval import CONFIDENCE, Interval

HALVINGS = 60
"""Of an angle below pi / 2, until neighboring floats are left."""


def mean_interval(values: Float64Array) -> Interval | None:
    """Return the 95 % interval of the mean that the values were drawn around.

    Args:
        values: independent and about normal. For few values the bootstrap's interval is too narrow:
            with five it includes the mean in 83 of 100 cases instead of 95, and one outlier moves it away.

    Shapes:
        values [N].

    Units:
        those of the values.

    Edge case:
        None for fewer than two values, or if one is not finite. Equal values have an interval of width 0.

    Source:
        Student 1908, "The probable error of a mean".

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
    """Return the magnitude that Student's t does not exceed in 95 % of cases.

    Args:
        freedom: degrees of freedom, at least 1.

    Units:
        standard errors.

    Edge case:
        1.96, the normal distribution's, for infinitely many.

    Source:
        Abramowitz and Stegun 1964, "Handbook of mathematical functions", 26.7.3 and 26.7.4.

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
