"""Numbers written for a reader; tables of a tuning and of several models; how fast a model is."""

import math
from typing import cast

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.analysis.analysis_document import Analysis
from ptq_cli.evaluation.document.gate_result import (
    SWITCHED_OFF,
    Latency,
    LatencyCause,
    ReportWarning,
    Times,
    inverse,
    latency_verdict,
)
from ptq_cli.evaluation.document.ladder import INTERRUPTED, BudgetCheck, Ladder, LadderStep
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.interval import Interval
from ptq_cli.evaluation.trade_offs import ComparedModel, TradeOffs
from ptq_cli.report.text.summary import INTERVAL, Row, Table, format_drop, format_interval, format_value


def format_share(count: int, total: int) -> str:
    """Write a share in percent; it reads 0 or 100 only if it is exactly that.

    Example:
        >>> format_share(0, 8), format_share(1, 10**9), format_share(1, 8), format_share(10**9 - 1, 10**9)
        ('0 %', '<0.0001 %', '12.5 %', '>99.999 %')
        >>> format_share(8, 8), format_share(0, 0)
        ('100 %', '0 %')
    """
    if not count:
        return "0 %"
    if count == total:
        return "100 %"
    percent = 100 * count / total
    if percent < 1:
        # Two significant digits: clipped values are often rarer than one in a thousand.
        return f"{percent:.2g} %" if percent >= 0.0001 else "<0.0001 %"
    text = f"{percent:.3g}" if percent < 99.9 else f"{percent:.3f}"
    return ">99.999 %" if text == "100.000" else f"{text} %"


def format_number(value: float) -> str:
    """Write a number with four significant digits.

    Example:
        >>> format_number(0.0), format_number(6.0), format_number(-1234567.0), format_number(0.000012345)
        ('0', '6', '-1.235e+06', '1.234e-05')
    """
    return f"{value:.4g}"


def format_range(low: float, high: float) -> str:
    """Write a range.

    Example:
        >>> format_range(-1.98, 6.0)
        '-1.98 … 6'
    """
    return f"{format_number(low)} … {format_number(high)}"


def format_decibels(value: float) -> str:
    """Write decibels.

    Example:
        >>> format_decibels(31.517), format_decibels(math.inf), format_decibels(math.nan)
        ('31.52 dB', 'inf', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    return f"{value:.2f} dB" if math.isfinite(value) else str(value)


def share_table(analysis: Analysis) -> Table:
    """Return what the output is with the weights, the activations, or both quantized."""
    shares = analysis.shares
    metric = analysis.metric if shares.both.metric is not None else None
    found = {
        "weights only": shares.weights,
        "activations only": shares.activations,
        "weights and activations": shares.both,
    }
    rows = []
    for name, item in found.items():
        if item is not None:
            values = [] if metric is None else [_metric_text(item.metric, cast(Unit, metric.unit))]
            rows.append((name, format_decibels(item.sqnr_db), *values))
    return Table(("quantized", "SQNR", *([] if metric is None else [metric.name])), tuple(rows))


def _metric_text(value: float | None, unit: Unit) -> str:
    return "NaN" if value is None or math.isnan(value) else format_value(value, unit)


def format_latency(seconds: float) -> str:
    """Write a short time with three digits.

    Example:
        >>> format_latency(0.01234), format_latency(0.0000456), format_latency(2.5)
        ('12.3 ms', '45.6 µs', '2.5 s')
    """
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 0.9995e-3 else f"{1e6 * seconds:.3g} µs"


# The ladder of a tuning as text: a row for each candidate.


def ladder_table(ladder: Ladder) -> Table:
    """Each candidate: its SQNR, each budget's metric, and what the held-out samples have shown."""
    names = [check.metric for check in ladder.best.checks]
    header = ["rung", "SQNR"]
    for check in ladder.best.checks:
        header += [budgeted(check)]
        header += ["at most" if check.kind == "max_drop" else "at least"]
    rows = [_row(step, names, chosen=index == ladder.chosen) for index, step in enumerate(ladder.steps)]
    return Table((*header, "result"), tuple(rows))


def _row(step: LadderStep, names: list[str], *, chosen: bool) -> Row:
    cells = [step.name, format_decibels(step.sqnr_db)]
    checks, proof = ({check.metric: check for check in found} for found in (step.checks, step.proof))
    for name in names:
        check = proof.get(name, checks[name])
        cells += [written(check, check.value), written(check, check.bound) if name in proof else ""]
    return (*cells, result_of(step, chosen=chosen))


def budgeted(check: BudgetCheck) -> str:
    """Return what a budget limits, in words: a drop, or a value."""
    return f"drop of {check.metric}" if check.kind == "max_drop" else check.metric


def written(check: BudgetCheck, value: float) -> str:
    """Write a value of a budget's metric."""
    return format_drop(value, check.unit) if check.kind == "max_drop" else format_value(value, check.unit)


def result_of(step: LadderStep, *, chosen: bool) -> str:
    """Say what became of a candidate."""
    if step.met:
        return "budget kept"
    if not step.kept:
        return "no better"
    proven = "not proven" if step.proof else "better"
    return f"{proven}, chosen" if chosen else proven


def verdict_of(ladder: Ladder) -> str:
    """Say whether the budget is kept, and how sure that is."""
    if ladder.met:
        return (
            f"budget kept by {ladder.best.name}: shown with 95 % confidence on {ladder.set_aside:,} held-out "
            "samples"
        )
    count = len(ladder.steps)
    best = f"{ladder.best.name} is the best of {count} candidate{'' if count == 1 else 's'}"
    if ladder.stopped == INTERRUPTED:
        return f"the budget is not kept yet: {best} so far"
    return f"BUDGET MISSED: {best}; {ladder.stopped}"


# Several quantized models side by side, as a table of plain text.


BEST = "best: no other model here is as good and smaller (size), or as good and faster (time)"


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
        "" if model.drop is None else format_drop(model.drop, found.unit),
        format_interval(model.interval, found.unit),
        format_bytes(model.bytes),
        f"{100 * model.size_ratio:.1f} %",
        "" if model.latency_ratio is None else f"{inverse(model.latency_ratio):.2f}",
        ", ".join(name for name, is_best in best.items() if is_best),
    )


# How fast a quantized model is beside the float one, in words.


LONGER = "ptq bench measures for longer"


def speed_lines(times: Times) -> list[str]:
    """A line of the quantized model beside the float one, and one of it beside the user's own file."""
    latency = times.latency
    if latency is None:
        said = times.not_measured not in ("", SWITCHED_OFF)
        return [f"note: the latency was not measured: {times.not_measured}"] if said else []
    lines = [_line(latency)]
    if latency.own is not None and latency.verdict != "too fast":
        value, between = _speed_up(latency.own.ratio, latency.own.ratio_interval)
        lines.append(f"{value} times as fast as your '{latency.own.name}'{between}")
    if latency.own_fault:
        lines.append(f"note: the latency of your own file was not measured: {latency.own_fault}")
    return lines


def slower_warning(latency: Latency, hint: str) -> ReportWarning | None:
    """Warning that a quantized model is slower than the float one or the user's file, if it is.

    Example:
        >>> from ptq_cli.evaluation.interval import Interval
        >>> cause = LatencyCause("HardSwish between integer layers", 0.31, 1.21, 0.48)
        >>> slow = Latency(float_ms=2.1, quantized_ms=2.5, batch_size=1, threads=2, rounds=30, ratio=1.18,
        ...     ratio_interval=Interval(1.13, 1.22, "student"), causes=(cause,))
        >>> slower_warning(slow, "ptq export --prefer latency").message
        'the quantized model is slower than float, 0.85 times as fast: HardSwish between integer layers \
takes 48 % of its time (1.21 ms, in the float model 310 µs)'
    """
    own = latency.own
    if latency.verdict == "slower":
        what = f"float, {inverse(latency.ratio):.2f} times as fast"
        causes = "; ".join(_cause(cause) for cause in latency.causes)
        what += f": {causes}" if causes else ""
    elif (
        own is not None and latency.verdict != "too fast" and latency_verdict(own.ratio_interval) == "slower"
    ):
        what = f"'{own.name}', {inverse(own.ratio):.2f} times as fast"
    else:
        return None
    return ReportWarning("slower_than_float", f"the quantized model is slower than {what}", (hint,))


def served_as(latency: Latency) -> str:
    """Write what was measured."""
    return f"at batch {latency.batch_size}, {latency.threads} thread{'s' if latency.threads != 1 else ''}"


def _line(latency: Latency) -> str:
    at = served_as(latency)
    if latency.verdict == "too fast":
        fastest = format_latency(min(latency.float_ms, latency.quantized_ms) / 1000)
        return f"too fast to compare with float: a run takes {fastest} {at}, which is mostly the call itself"
    value, between = _speed_up(latency.ratio, latency.ratio_interval)
    if latency.verdict == "faster":
        return f"{value} times as fast as float{between} {at}"
    if latency.verdict == "busy":
        said = f"the machine is too busy to tell whether it is faster than float: {value} times as fast"
        return f"{said}{between} {at}; {LONGER}"
    beside = "slower than float" if latency.verdict == "slower" else "about as fast as float"
    return f"{beside}: {value} times as fast{between} {at}"


def _speed_up(ratio: float, interval: Interval | None) -> tuple[str, str]:
    """Write how many times as fast a model is, from the ratio of its time to another one's."""
    between = (
        f" ({inverse(interval.high):.2f} to {inverse(interval.low):.2f})" if interval is not None else ""
    )
    return f"{inverse(ratio):.2f}", between


def _cause(cause: LatencyCause) -> str:
    own, before = (format_latency(time / 1000) for time in (cause.quantized_ms, cause.float_ms))
    beside = f"in the float model {before}" if cause.float_ms > 0 else "no time of its own in the float model"
    return f"{cause.what} takes {100 * cause.share:.0f} % of its time ({own}, {beside})"
