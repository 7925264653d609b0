"""Reports beside each other: what changed between two, and which of several is best."""

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.gate_result import inverse
from ptq_cli.evaluation.interval import TOLERANCE
from ptq_cli.evaluation.report_changes import (
    WORSE_BY_DB,
    ComparedModel,
    MetricChange,
    ReportChanges,
    TradeOffs,
)
from ptq_cli.report.text.numbers import INTERVAL, Row, Table, format_drop, format_interval, format_value

DIGEST_LENGTH, SHOWN_DIGEST = 64, 12
_MOST_LAYERS = 20  # layers that a table shows at most; --json has all of them
BEST = "best: no other model here is as good and smaller (size), or as good and faster (time)"


def change_table(comparison: ReportChanges) -> Table:
    """Each metric: both values, how much worse it became, the interval, and the result in words."""
    rows = []
    for metric in comparison.metrics:
        before, after = (format_value(value, metric.unit) for value in (metric.before, metric.after))
        worse = format_drop(metric.worse_by, metric.unit)
        interval = format_interval(metric.interval, metric.unit)
        rows.append((metric.name, before, after, worse, interval, _result(metric)))
    return Table(("metric", "before", "after", "worse by", INTERVAL, "result"), tuple(rows))


def size_line(comparison: ReportChanges) -> str:
    """Change of the quantized file's size, in words."""
    before, after = comparison.bytes_before, comparison.bytes_after
    if before == after:
        return f"size: {format_bytes(after)}, unchanged"
    change = f"{100 * (after / before - 1):+.2f} %"
    return f"size: {format_bytes(before)} before, {format_bytes(after)} after ({change})"


def difference_table(comparison: ReportChanges) -> Table:
    """Other differences; digests are cut to their first characters."""
    rows = ((found.what, _cut(found.before), _cut(found.after)) for found in comparison.changes)
    return Table(("what", "before", "after"), tuple(rows))


def moved_table(comparison: ReportChanges) -> Table:
    """Layers that moved between integer and float, or stay float for another reason."""
    rows = tuple((found.what, found.before, found.after) for found in comparison.layers)
    return Table(("layer", "before", "after"), rows)


def latency_line(comparison: ReportChanges) -> str:
    """Change of the latency relative to the float model; empty if neither report measured it."""
    before, after = (
        "not measured" if ratio is None else f"{ratio:.2f} times float"
        for ratio in (comparison.latency_before, comparison.latency_after)
    )
    return "" if before == after == "not measured" else f"latency: {before} before, {after} after"


def worse_table(comparison: ReportChanges) -> Table:
    """Layers that lost most of their SQNR, at most twenty of them."""
    rows = tuple(
        (
            loss.name,
            loss.op,
            format_value(loss.before, "decibel"),
            format_value(loss.after, "decibel"),
            format_drop(loss.worse_by, "decibel"),
        )
        for loss in (comparison.worse_layers or ())[:_MOST_LAYERS]
    )
    return Table(("layer that got worse", "op", "before", "after", "worse by"), rows)


def worse_line(comparison: ReportChanges) -> str:
    """Number of layers that got worse, or why it is not known."""
    found = comparison.worse_layers
    if found is None:
        return "layers: not compared; run `ptq analyze` for both runs to see which layers got worse"
    more = f", {len(found) - _MOST_LAYERS} of them not shown" if len(found) > _MOST_LAYERS else ""
    return f"layers whose output lost more than {WORSE_BY_DB:g} dB: {len(found)}{more}"


def _result(metric: MetricChange) -> str:
    """Whether the metric got better or worse, and whether the change is within its interval."""
    worse = metric.worse_by
    if worse is None:
        return "new" if metric.before is None else "gone"
    if abs(worse) <= TOLERANCE or metric.before == metric.after:
        return "same"
    interval = metric.interval
    is_noise = interval is not None and interval.low <= 0 <= interval.high
    return ("worse" if worse > 0 else "better") + (", within noise" if is_noise else "")


def _cut(text: str) -> str:
    is_digest = len(text) == DIGEST_LENGTH and not set(text) - set("0123456789abcdef")
    return text[:SHOWN_DIGEST] if is_digest else text


def trade_off_table(found: TradeOffs) -> Table:
    """A row for each model: accuracy, size, time, and in which of these it is on the Pareto front.

    Edge case: Drops and times have no column if no model has one.
    """
    header = ("model", found.metric, "drop", INTERVAL, "size", "of float", "times as fast", "best")
    rows = [_trade_off_row(model, found) for model in found.models]
    kept = [
        index
        for index, title in enumerate(header)
        if title not in ("drop", "times as fast") or any(row[index] for row in rows)
    ]
    return Table(
        tuple(header[index] for index in kept), tuple(tuple(row[index] for index in kept) for row in rows)
    )


def _trade_off_row(model: ComparedModel, found: TradeOffs) -> Row:
    best = {"size": model.best_by_size, "time": model.best_by_time}
    return (
        model.name,
        format_value(model.value, found.unit),
        format_drop(model.drop, found.unit),
        format_interval(model.interval, found.unit),
        format_bytes(model.bytes),
        f"{100 * model.size_ratio:.1f} %",
        "" if model.latency_ratio is None else f"{inverse(model.latency_ratio):.2f}",
        ", ".join(name for name, is_best in best.items() if is_best),
    )
