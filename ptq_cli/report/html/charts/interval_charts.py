"""Metrics and gates with charts of their intervals."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptq_cli.evaluation.document.gate_result import GateResult
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import Flips, Interval
from ptq_cli.report.html.charts.axis_scale import Scale, widened
from ptq_cli.report.text.markdown import doubt_text, row_of
from ptq_cli.report.text.summary import format_drop, format_interval, format_value, metric_labels

STRIP_WIDTH, STRIP_MARGIN = 180.0, 6.0
MOST_CLASSES = 100
Domain = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """An interval in a drawing that is 180 wide: the positions of its ends, its value and a reference.

    Attributes:
        value: position of the measured value.
        low, high: positions of the interval's ends; the value's position if there is no interval.
        reference: position of what the value is compared with: no drop, or a gate's limit; None without one.
        allowed: the positions between which a gate's limit is kept; None for a metric.
        text: the interval in words.
    """

    value: float
    low: float
    high: float
    reference: float | None
    allowed: tuple[float, float] | None
    text: str


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """A metric, or one of its classes, as text; a field that does not apply to it is empty."""

    name: str
    float_value: str
    quantized_value: str
    drop: str
    interval: str
    note: str
    strip: Strip | None
    pytorch_value: str = ""
    made_by: str = ""
    classes: tuple["MetricRow", ...] = ()
    classes_left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class GateRow:
    """A gate as text; ``state`` is ``"pass"``, ``"fail"`` or ``"undecided"``."""

    what: str
    limit: str
    value: str
    interval: str
    result: str
    state: str
    doubt: str
    strip: Strip | None


def metric_rows(report: Report) -> tuple[tuple[MetricRow, ...], tuple[MetricRow, ...]]:
    """Return the metrics of each model, and the metrics that compare the two models.

    All drops of shares have the same scale, on which "no drop" is marked; every other metric has its own.
    """
    paired = [metric for metric in report.metrics if metric.drop is not None]
    shares = _drop_domain([metric for metric in paired if metric.unit == "share"])
    compared, labels = [metric for metric in report.metrics if metric.drop is None], metric_labels(report)
    return (
        tuple(
            _paired_row(
                metric, labels[metric.name], shares if metric.unit == "share" else _drop_domain([metric])
            )
            for metric in paired
        ),
        tuple(_compared_row(metric, labels[metric.name]) for metric in compared),
    )


def gate_rows(report: Report) -> tuple[GateRow, ...]:
    """Return each gate with a chart of its interval and of what its limit allows."""
    return tuple(_gate_row(report, gate) for gate in report.gates)


def _paired_row(metric: Measurement, label: str, domain: Domain | None) -> MetricRow:
    drop, before = metric.drop, metric.float_value
    if drop is None or before is None:
        raise ValueError("expected a metric that has a value for each model")
    interval = format_interval(metric.drop_interval, metric.unit)
    pytorch = metric.pytorch_value
    return MetricRow(
        name=label,
        float_value=format_value(before, metric.unit),
        quantized_value=format_value(metric.quantized_value, metric.unit),
        drop=format_drop(drop, metric.unit),
        interval=interval,
        note=metric.no_interval if metric.flips is None else _flips_text(metric.flips),
        strip=_strip(drop, metric.drop_interval, domain, interval, reference=0.0),
        pytorch_value=format_value(pytorch, metric.unit) if pytorch is not None else "",
        made_by=_made_by(metric),
        classes=_class_rows(metric),
        classes_left_out=max(len(metric.by_class) - MOST_CLASSES, 0),
    )


def _made_by(metric: Measurement) -> str:
    """Return the user's class or function that computed the metric, with its arguments."""
    if metric.computed_by is None:
        return ""
    arguments = ", ".join(f"{name} = {value}" for name, value in sorted(metric.arguments.items()))
    return f"{metric.computed_by} ({arguments})" if arguments else metric.computed_by


def _class_rows(metric: Measurement) -> tuple[MetricRow, ...]:
    """Return the classes with the largest drops, the largest first."""
    worst = sorted(metric.by_class, key=lambda one: -one.drop)[:MOST_CLASSES]
    found = [(one, one.drop_interval) for one in worst]
    ends = [end for _, interval in found if interval is not None for end in (interval.low, interval.high)]
    domain = _domain([0.0, *ends, *(one.drop for one, _ in found)])
    return tuple(
        MetricRow(
            name=one.name or str(one.label),
            float_value=format_value(one.float_value, "share"),
            quantized_value=format_value(one.quantized_value, "share"),
            drop=format_drop(one.drop, "share"),
            interval=format_interval(interval, "share"),
            note=f"{one.flips.samples:,}",
            strip=_strip(one.drop, interval, domain, format_interval(interval, "share"), reference=0.0),
        )
        for one, interval in found
    )


def _flips_text(flips: Flips) -> str:
    return f"{flips.lost} lost, {flips.gained} gained; McNemar p = {flips.p_value:.2g}"


def _compared_row(metric: Measurement, label: str) -> MetricRow:
    interval = format_interval(metric.quantized_interval, metric.unit)
    found = metric.quantized_interval
    domain = _domain([found.low, found.high, metric.quantized_value]) if found is not None else None
    value = format_value(metric.quantized_value, metric.unit)
    strip = _strip(metric.quantized_value, found, domain, interval)
    return MetricRow(
        name=label,
        float_value="",
        quantized_value=value,
        drop="",
        interval=interval,
        note=str(metric.channel) if metric.channel is not None else "",
        strip=strip,
    )


def _gate_row(report: Report, gate: GateResult) -> GateRow:
    what, limit, value, interval, result = row_of(report, gate)
    undecided = gate.verdict == "undecided"
    state = "undecided" if undecided and gate.passed else ("pass" if gate.passed else "fail")
    ends = [gate.interval.low, gate.interval.high] if gate.interval is not None else []
    # The scale of a size or a drop starts at 0.
    from_zero = [] if gate.kind == "min" else [0.0]
    domain = _domain([gate.limit, gate.value, *ends, *from_zero])
    doubt = doubt_text(gate, report) if undecided else ""
    strip = _strip(gate.value, gate.interval, domain, interval or value, reference=gate.limit)
    return GateRow(
        what=what,
        limit=limit,
        value=value,
        interval=interval,
        result=result,
        state=state,
        doubt=doubt,
        strip=_with_allowed(strip, gate),
    )


def _with_allowed(strip: Strip | None, gate: GateResult) -> Strip | None:
    if strip is None or strip.reference is None:
        return None
    allowed = (strip.reference, STRIP_WIDTH) if gate.kind == "min" else (0.0, strip.reference)
    return Strip(
        value=strip.value,
        low=strip.low,
        high=strip.high,
        reference=strip.reference,
        allowed=allowed,
        text=strip.text,
    )


def _strip(
    value: float, interval: Interval | None, domain: Domain | None, text: str, reference: float | None = None
) -> Strip | None:
    if domain is None:
        return None
    scale = Scale(low=domain[0], high=domain[1], start=STRIP_MARGIN, end=STRIP_WIDTH - STRIP_MARGIN)
    low, high = (interval.low, interval.high) if interval is not None else (value, value)
    place = scale.at(reference) if reference is not None else None
    return Strip(
        value=scale.at(value),
        low=scale.at(low),
        high=scale.at(high),
        reference=place,
        allowed=None,
        text=text,
    )


def _drop_domain(metrics: Sequence[Measurement]) -> Domain | None:
    return _domain(_drop_ends(metrics))


def _drop_ends(metrics: Sequence[Measurement]) -> Iterable[float]:
    yield 0.0
    for metric in metrics:
        if metric.drop is not None:
            yield metric.drop
            if metric.drop_interval is not None:
                yield from (metric.drop_interval.low, metric.drop_interval.high)


def _domain(values: Iterable[float]) -> Domain | None:
    """Return a range that holds the values; None if one is not finite, because it cannot be drawn."""
    found = list(values)
    if not all(math.isfinite(value) for value in found):
        return None
    return widened(min(found), max(found))
