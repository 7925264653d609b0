"""Several quantized models side by side, as a table of plain text."""

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.comparison.trade_offs import ComparedModel, TradeOffs
from ptq_cli.report.document.times import inverse
from ptq_cli.report.text.summary import INTERVAL, Row, Table, format_drop, format_interval, format_value

BEST = "best: no other model here is as good and smaller (size), or as good and faster (time)"


def trade_off_table(found: TradeOffs) -> Table:
    """Return a row for each model: accuracy, size, time, and in which of these it is on the Pareto front.

    Edge case:
        Drops and times have no column if no model has one.
    """
    header = ("model", found.metric, "drop", INTERVAL, "size", "of float", "times as fast", "best")
    rows = [_row(model, found) for model in found.models]
    kept = [
        index
        for index, title in enumerate(header)
        if title not in ("drop", "times as fast") or any(row[index] for row in rows)
    ]
    return Table(
        tuple(header[index] for index in kept), tuple(tuple(row[index] for index in kept) for row in rows)
    )


def best_in(model: ComparedModel) -> str:
    """Return in which trade-offs no other model is better, in words; empty if in none."""
    named = {"size": model.best_by_size, "time": model.best_by_time}
    return ", ".join(name for name, is_best in named.items() if is_best)


def speed(model: ComparedModel) -> str:
    """Return how many times as fast as its float model it is; empty if that was not measured."""
    return "" if model.latency_ratio is None else f"{inverse(model.latency_ratio):.2f}"


def _row(model: ComparedModel, found: TradeOffs) -> Row:
    return (
        model.name,
        format_value(model.value, found.unit),
        "" if model.drop is None else format_drop(model.drop, found.unit),
        format_interval(model.interval, found.unit),
        format_bytes(model.bytes),
        f"{100 * model.size_ratio:.1f} %",
        speed(model),
        best_in(model),
    )
