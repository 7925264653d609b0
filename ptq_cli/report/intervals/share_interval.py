"""The interval of one model's share of samples."""

import math

from ptq_cli.report.intervals.interval import NORMAL_QUANTILE, TOLERANCE, Interval, rounded_up


def share_interval(share: float, samples: int) -> Interval:
    """Return the 95 % interval of a share, by Wilson's score.

    Args:
        share: the share of the samples, such as those whose class is right.
        samples: how many samples there are, at least 1.

    Units:
        a share, 0 to 1.

    Edge case:
        A share of 0 or 1 also has an interval with a width.

    Source:
        Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Example:
        >>> interval = share_interval(0.8, 100)
        >>> round(interval.low, 4), round(interval.high, 4)
        (0.7112, 0.8666)
    """
    square = NORMAL_QUANTILE**2 / samples
    center = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return Interval(max(0.0, center - half), min(1.0, center + half), "wilson")


def smallest_share(share: float, samples: int, quantile: float) -> float:
    """Return the smallest share that Wilson's one-sided score test does not reject.

    Args:
        share: the share of the samples, such as those that agree.
        samples: how many samples there are, at least 1.
        quantile: of the standard normal distribution, such as 1.645 for a level of 5 %.

    Units:
        a share, 0 to 1.

    Edge case:
        Of a share of 1 it is ``samples / (samples + quantile²)``.

    Source:
        Wilson 1927, as ``share_interval``.

    Example:
        >>> round(smallest_share(1.0, 512, 1.96), 4)
        0.9926
    """
    square = quantile**2 / samples
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return max(0.0, (share + square / 2) / (1 + square) - half)


def samples_to_resolve_share(share: float, limit: float) -> int | None:
    """Return how many samples it takes until the interval of a share ends at ``limit``.

    Units:
        the total number of samples, not additional ones.

    Edge case:
        None if the share is the limit, within 1e-9, because no number is enough. 1 for a limit of 0 or 1.

    Source:
        Wilson 1927, as ``share_interval``.

    Example:
        >>> samples_to_resolve_share(0.82, limit=0.8)
        1537
    """
    gap = abs(share - limit)
    if gap <= TOLERANCE:
        return None
    return rounded_up(max(0.0, limit * (1 - limit)) * (NORMAL_QUANTILE / gap) ** 2)
