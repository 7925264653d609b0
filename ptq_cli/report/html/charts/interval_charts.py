"""Metrics and gates with charts of their intervals."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ptq_cli.evaluation.document.gate_result import GateResult
from ptq_cli.evaluation.document.measurement import ClassValue, Measurement
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import Interval
from ptq_cli.report.html.charts.axis_scale import Scale, widened
from ptq_cli.report.text.gates import doubt_text, row_of
from ptq_cli.report.text.numbers import Row, format_drop, format_interval, format_value
from ptq_cli.report.text.summary import metric_labels

STRIP_WIDTH, STRIP_MARGIN = 180.0, 6.0
MOST_CLASSES = 100
Domain = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """An interval in a drawing that is 180 wide: the positions of its ends, its value and a reference.

    The reference is no drop, or a gate's limit; ``allowed`` is where that limit is kept.
    """

    value: float
    low: float
    high: float
    reference: float | None
    text: str
    allowed: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """A metric, or one of its classes, as text; a field that does not apply to it is empty."""

    name: str
    quantized_value: str
    interval: str
    note: str
    strip: Strip | None
    float_value: str = ""
    drop: str = ""
    pytorch_value: str = ""
    made_by: str = ""
    classes: tuple["MetricRow", ...] = ()
    classes_left_out: int = 0


@dataclass(frozen=True)
class GateRow:
    """A gate as text, see ``row_of``; ``state`` is ``"pass"``, ``"fail"`` or ``"undecided"``."""

    cells: Row
    state: str
    doubt: str
    strip: Strip | None


def metric_rows(report: Report) -> tuple[list[MetricRow], list[MetricRow]]:
    """Metrics of each model, and the metrics that compare the two models.

    All drops of shares have the same scale, on which "no drop" is marked; every other metric has its own.
    """
    labels = metric_labels(report)
    shares = _drop_domain(item for item in report.metrics if item.drop is not None and item.unit == "share")
    paired, compared = [], []
    for metric in report.metrics:
        if metric.drop is None:
            compared.append(_compared_row(metric, labels[metric.name]))
        else:
            domain = shares if metric.unit == "share" else _drop_domain([metric])
            paired.append(_paired_row(metric, metric.drop, labels[metric.name], domain))
    return paired, compared


def gate_rows(report: Report) -> tuple[GateRow, ...]:
    """Each gate with a chart of its interval and of what its limit allows."""
    return tuple(_gate_row(report, gate) for gate in report.gates)


def _paired_row(metric: Measurement, drop: float, label: str, domain: Domain | None) -> MetricRow:
    interval, flips = format_interval(metric.drop_interval, metric.unit), metric.flips
    return MetricRow(
        name=label,
        float_value=format_value(metric.float_value, metric.unit),
        quantized_value=format_value(metric.quantized_value, metric.unit),
        drop=format_drop(drop, metric.unit),
        interval=interval,
        note=metric.no_interval
        if flips is None
        else f"{flips.lost} lost, {flips.gained} gained; McNemar p = {flips.p_value:.2g}",
        strip=_strip(drop, metric.drop_interval, domain, interval, reference=0.0),
        pytorch_value=format_value(metric.pytorch_value, metric.unit),
        made_by=_made_by(metric),
        classes=_class_rows(metric),
        classes_left_out=max(len(metric.by_class) - MOST_CLASSES, 0),
    )


def _made_by(metric: Measurement) -> str:
    """User's class or function that computed the metric, with its arguments."""
    if metric.computed_by is None:
        return ""
    arguments = ", ".join(f"{name} = {value}" for name, value in sorted(metric.arguments.items()))
    return f"{metric.computed_by} ({arguments})" if arguments else metric.computed_by


def _class_rows(metric: Measurement) -> tuple[MetricRow, ...]:
    """Classes with the largest drops, the largest first."""
    worst = sorted(metric.by_class, key=lambda one: -one.drop)[:MOST_CLASSES]
    domain = _drop_domain(worst)
    return tuple(
        MetricRow(
            name=one.name or str(one.label),
            float_value=format_value(one.float_value, "share"),
            quantized_value=format_value(one.quantized_value, "share"),
            drop=format_drop(one.drop, "share"),
            interval=(text := format_interval(one.drop_interval, "share")),
            note=f"{one.flips.samples:,}",
            strip=_strip(one.drop, one.drop_interval, domain, text, reference=0.0),
        )
        for one in worst
    )


def _compared_row(metric: Measurement, label: str) -> MetricRow:
    interval = format_interval(metric.quantized_interval, metric.unit)
    found = metric.quantized_interval
    domain = _domain([found.low, found.high, metric.quantized_value]) if found is not None else None
    return MetricRow(
        name=label,
        quantized_value=format_value(metric.quantized_value, metric.unit),
        interval=interval,
        note=str(metric.channel) if metric.channel is not None else "",
        strip=_strip(metric.quantized_value, found, domain, interval),
    )


def _gate_row(report: Report, gate: GateResult) -> GateRow:
    cells = row_of(report, gate)
    undecided = gate.verdict == "undecided"
    state = "fail" if not gate.passed else "undecided" if undecided else "pass"
    ends = [gate.interval.low, gate.interval.high] if gate.interval is not None else []
    # The scale of a size or a drop starts at 0.
    from_zero = [] if gate.kind == "min" else [0.0]
    domain = _domain([gate.limit, gate.value, *ends, *from_zero])
    doubt = doubt_text(gate, report) if undecided else ""
    _, _, value, interval, _ = cells
    strip = _strip(gate.value, gate.interval, domain, interval or value, reference=gate.limit)
    if strip is not None and strip.reference is not None:
        allowed = (strip.reference, STRIP_WIDTH) if gate.kind == "min" else (0.0, strip.reference)
        strip = replace(strip, allowed=allowed)
    return GateRow(cells, state, doubt, strip)


def _strip(
    value: float, interval: Interval | None, domain: Domain | None, text: str, reference: float | None = None
) -> Strip | None:
    if domain is None:
        return None
    scale = Scale(low=domain[0], high=domain[1], start=STRIP_MARGIN, end=STRIP_WIDTH - STRIP_MARGIN)
    low, high = (interval.low, interval.high) if interval is not None else (value, value)
    place = scale.at(reference) if reference is not None else None
    return Strip(value=scale.at(value), low=scale.at(low), high=scale.at(high), reference=place, text=text)


def _drop_domain(found: Iterable[Measurement | ClassValue]) -> Domain | None:
    """A range that holds all drops and their intervals, and no drop."""
    items = list(found)
    intervals = [item.drop_interval for item in items if item.drop_interval is not None]
    drops = [item.drop for item in items if item.drop is not None]
    return _domain([0.0, *drops, *(end for item in intervals for end in (item.low, item.high))])


def _domain(values: Iterable[float]) -> Domain | None:
    """A range that holds the values; None if one is not finite, because it cannot be drawn."""
    found = list(values)
    if not all(math.isfinite(value) for value in found):
        return None
    return widened(min(found), max(found))
