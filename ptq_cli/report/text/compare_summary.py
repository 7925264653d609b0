"""A comparison as tables of plain text."""

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.comparison.report_changes import WORSE_BY_DB, MetricChange, ReportChanges
from ptq_cli.report.intervals.interval import TOLERANCE
from ptq_cli.report.text.summary import INTERVAL, Row, Table, format_drop, format_interval, format_value

DIGEST_LENGTH, SHOWN_DIGEST = 64, 12
MOST_LAYERS = 20
"""Layers that a table shows at most; --json has all of them."""


def change_table(comparison: ReportChanges) -> Table:
    """Return each metric: both values, how much worse it became, the interval, and the result in words."""
    rows = tuple(_metric_row(metric) for metric in comparison.metrics)
    return Table(("metric", "before", "after", "worse by", INTERVAL, "result"), rows)


def size_line(comparison: ReportChanges) -> str:
    """Return how the quantized file's size changed, in words."""
    return _size_text(comparison.bytes_before, comparison.bytes_after)


def difference_table(comparison: ReportChanges) -> Table:
    """Return what else differs; digests are cut to their first characters."""
    rows = ((found.what, _short(found.before), _short(found.after)) for found in comparison.changes)
    return Table(("what", "before", "after"), tuple(rows))


def moved_table(comparison: ReportChanges) -> Table:
    """Return the layers that moved between integer and float, or stay float for another reason."""
    rows = tuple((found.what, found.before, found.after) for found in comparison.layers)
    return Table(("layer", "before", "after"), rows)


def latency_line(comparison: ReportChanges) -> str:
    """Return how the latency relative to the float model changed; empty if neither report measured it."""
    before, after = (
        "not measured" if ratio is None else f"{ratio:.2f} times float"
        for ratio in (comparison.latency_before, comparison.latency_after)
    )
    return "" if before == after == "not measured" else f"latency: {before} before, {after} after"


def worse_table(comparison: ReportChanges) -> Table:
    """Return the layers that lost most of their SQNR, at most twenty of them."""
    rows = tuple(
        (
            loss.name,
            loss.op,
            format_value(loss.before, "decibel"),
            format_value(loss.after, "decibel"),
            format_drop(loss.worse_by, "decibel"),
        )
        for loss in (comparison.worse_layers or ())[:MOST_LAYERS]
    )
    return Table(("layer that got worse", "op", "before", "after", "worse by"), rows)


def worse_line(comparison: ReportChanges) -> str:
    """Return how many layers got worse, or why that is not known."""
    found = comparison.worse_layers
    if found is None:
        return "layers: not compared; run `ptq analyze` for both runs to see which layers got worse"
    more = f", {len(found) - MOST_LAYERS} of them not shown" if len(found) > MOST_LAYERS else ""
    return f"layers whose output lost more than {WORSE_BY_DB:g} dB: {len(found)}{more}"


def _metric_row(metric: MetricChange) -> Row:
    values = (
        "" if value is None else format_value(value, metric.unit) for value in (metric.before, metric.after)
    )
    worse = "" if metric.worse_by is None else format_drop(metric.worse_by, metric.unit)
    return (metric.name, *values, worse, format_interval(metric.interval, metric.unit), _result(metric))


def _result(metric: MetricChange) -> str:
    """Return whether the metric got better or worse, and whether the change is within its interval.

    Example:
        >>> _result(
        ...     MetricChange(name="sqnr_db", unit="decibel", higher_is_better=True, before=30.0, after=31.0)
        ... )
        'better'
    """
    worse = metric.worse_by
    if worse is None:
        return "new" if metric.before is None else "gone"
    if abs(worse) <= TOLERANCE or metric.before == metric.after:
        return "same"
    interval = metric.interval
    is_noise = interval is not None and interval.low <= 0 <= interval.high
    return ("worse" if worse > 0 else "better") + (", within noise" if is_noise else "")


def _size_text(before: int, after: int) -> str:
    """Write both sizes.

    Example:
        >>> _size_text(1_000_000, 900_000), _size_text(12, 12)
        ('size: 1 MB before, 900 kB after (-10.00 %)', 'size: 12 bytes, unchanged')
    """
    if before == after:
        return f"size: {format_bytes(after)}, unchanged"
    change = f"{100 * (after / before - 1):+.2f} %"
    return f"size: {format_bytes(before)} before, {format_bytes(after)} after ({change})"


def _short(text: str) -> str:
    is_digest = len(text) == DIGEST_LENGTH and not set(text) - set("0123456789abcdef")
    return text[:SHOWN_DIGEST] if is_digest else text
