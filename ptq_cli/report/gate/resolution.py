"""How many samples it would take to tell on which side of a limit the true value lies."""

from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.intervals.interval import samples_for_width
from ptq_cli.report.intervals.score_interval import samples_to_resolve
from ptq_cli.report.intervals.share_interval import samples_to_resolve_share


def samples_for_drop(measurement: Measurement, limit: float, samples: int) -> int | None:
    """Return about how many samples it takes until the interval of the drop ends at ``limit``.

    Args:
        measurement: what was measured.
        limit: the largest drop allowed.
        samples: on how many it was measured.

    Units:
        samples in all, not on top; the limit in the metric's unit.

    Edge case:
        None if the drop has no interval, or is the limit.

    Source:
        Tango 1998 for shares, see ``score_interval``; otherwise Cochran 1977, "Sampling techniques",
        chapter 4.

    Example:
        >>> from ptq_cli.report.intervals.flips import Flips
        >>> flips = Flips.counted(100, lost=0, gained=0)
        >>> top1 = Measurement(
        ...     name="top1",
        ...     unit="share",
        ...     needs_labels=True,
        ...     higher_is_better=True,
        ...     quantized_value=0.8,
        ...     float_value=0.8,
        ...     flips=flips,
        ... )
        >>> samples_for_drop(top1, limit=0.01, samples=100)
        381
    """
    if measurement.flips is not None:
        return samples_to_resolve(measurement.flips, limit)
    if measurement.drop_interval is None or measurement.drop is None:
        return None
    return samples_for_width(samples, measurement.drop, measurement.drop_interval, limit)


def samples_for_ratio(measurement: Measurement, limit: float, samples: int) -> int | None:
    """Return about how many samples it takes until the interval of the ratio ends at ``limit``.

    Args:
        measurement: what was measured.
        limit: the largest ratio allowed.
        samples: on how many it was measured.

    Units:
        samples in all, not on top.

    Edge case:
        None if the ratio has no interval, or is the limit.

    Source:
        Cochran 1977, "Sampling techniques", chapter 4.

    Example:
        >>> from ptq_cli.report.intervals.interval import Interval
        >>> perplexity = Measurement(
        ...     name="perplexity",
        ...     unit="number",
        ...     needs_labels=False,
        ...     higher_is_better=False,
        ...     quantized_value=20.2,
        ...     float_value=20.0,
        ...     ratio_interval=Interval(0.99, 1.03, "bootstrap"),
        ... )
        >>> samples_for_ratio(perplexity, limit=1.02, samples=100)
        400
    """
    if measurement.ratio is None or measurement.ratio_interval is None:
        return None
    return samples_for_width(samples, measurement.ratio, measurement.ratio_interval, limit)


def samples_for_minimum(measurement: Measurement, limit: float, samples: int) -> int | None:
    """Return about how many samples it takes until the interval of the value ends at ``limit``.

    Args:
        measurement: what was measured.
        limit: the smallest value allowed.
        samples: on how many it was measured.

    Units:
        samples in all, not on top; the limit in the metric's unit.

    Edge case:
        None if the value has no interval, or is the limit.

    Source:
        Wilson 1927 for shares, see ``share``; otherwise Cochran 1977, "Sampling techniques", chapter 4.

    Example:
        >>> from ptq_cli.report.intervals.share_interval import share_interval
        >>> top1 = Measurement(
        ...     name="top1",
        ...     unit="share",
        ...     needs_labels=True,
        ...     higher_is_better=True,
        ...     quantized_value=0.82,
        ...     float_value=0.83,
        ...     quantized_interval=share_interval(0.82, 100),
        ... )
        >>> samples_for_minimum(top1, limit=0.8, samples=100)
        1537
    """
    interval = measurement.quantized_interval
    if interval is None:
        return None
    if interval.method == "wilson":
        return samples_to_resolve_share(measurement.quantized_value, limit)
    return samples_for_width(samples, measurement.quantized_value, interval, limit)
