"""Charts on linear axes: metrics and gates with their intervals, and SQNR over the steps of recordings."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ptq_cli.core.words import format_count
from ptq_cli.evaluation.document.gate_result import GateResult
from ptq_cli.evaluation.document.measurement import ClassValue, Measurement, Stream
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import Interval
from ptq_cli.report.text.gates import doubt_text, row_of
from ptq_cli.report.text.numbers import Row, format_drop, format_interval, format_value
from ptq_cli.report.text.summary import metric_labels


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its position and its label."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Linear map from the values ``low`` to ``high`` to the positions ``start`` to ``end`` in a drawing."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Position of a value, rounded to a tenth; a value beyond an end is put at the end."""
        held = min(max(value, self.low), self.high)
        share = (held - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> tuple[Tick, ...]:
        """About ``count`` marks at round values."""
        values = nice_values(self.low, self.high, count)
        return tuple(Tick(self.at(value), format_count(value)) for value in values)


def nice_values(low: float, high: float, count: int) -> tuple[float, ...]:
    """About ``count`` round values within [low, high]; a single one if both ends are the same."""
    if not high > low:
        return (low,)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * clean for clean in (1.0, 2.0, 5.0, 10.0) if power * clean >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def widened(low: float, high: float) -> tuple[float, float]:
    """Range with a twentieth of its width added on each side; a range of width 0 gets some width.

    Example:
        >>> widened(0.0, 20.0), widened(4.0, 4.0)
        ((-1.0, 21.0), (3.8, 4.2))
    """
    margin = (high - low) / 20 or abs(high) / 20 or 1.0
    return low - margin, high + margin


def largest_in_frame(values: Sequence[float]) -> float:
    """Largest value that does not lie far above the others; the largest of all if the middle half are equal.

    An axis that ends there still shows the others apart; what lies beyond is drawn at its end.

    Source: the outer fence of Tukey, Exploratory Data Analysis, 1977, chapter 2.

    Example:
        >>> largest_in_frame([20.0, 22.0, 25.0, 30.0, 138.0])
        30.0
    """
    ordered = sorted(values)
    first, third = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    fence = third + 3 * (third - first)
    return max(value for value in ordered if value <= fence or first == third)


LEFT, RIGHT, TOP, BOTTOM = 54.0, 540.0, 14.0, 260.0  # positions of the axes' ends, in a drawing of 560 x 300


@dataclass(frozen=True, kw_only=True)
class StepChart:
    """Two lines as SVG paths, the marks of the axes, and the caption."""

    own: str
    forced: str
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    caption: str


def step_chart(stream: Stream) -> StepChart | None:
    """SQNR of the first output by step.

    Edge case: None with fewer than two finite values on the model's own states.
    """
    if not stream.drifts:
        return None
    name = stream.drifts[0].metric
    own = _finite((item.step, item.free.get(name, math.nan)) for item in stream.curve)
    forced = _finite((item.step, item.forced.get(name, math.nan)) for item in stream.curve)
    if len(own) < 2:
        return None
    values = [value for _, value in own + forced]
    highest = largest_in_frame(values)
    low, high = widened(min(values), highest)
    along = Scale(low=1.0, high=float(stream.longest), start=LEFT, end=RIGHT)
    up = Scale(low=low, high=high, start=BOTTOM, end=TOP)
    beyond = f" Values above {high:.1f} dB are drawn at the upper end." if max(values) > highest else ""
    return StepChart(
        own=_path(own, along, up),
        forced=_path(forced, along, up),
        ticks_x=along.ticks(6),
        ticks_y=up.ticks(5),
        caption=f"Worst at step {stream.worst_step}.{beyond}",
    )


def _finite(values: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in values if math.isfinite(value)]


def _path(points: Sequence[tuple[int, float]], along: Scale, up: Scale) -> str:
    return " ".join(
        f"{'L' if index else 'M'}{along.at(step):g} {up.at(value):g}"
        for index, (step, value) in enumerate(points)
    )


STRIP_WIDTH, STRIP_MARGIN = 180.0, 6.0
_MOST_CLASSES = 100
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
        made_by=_made_by(metric),
        classes=_class_rows(metric),
        classes_left_out=max(len(metric.by_class) - _MOST_CLASSES, 0),
    )


def _made_by(metric: Measurement) -> str:
    """User's class or function that computed the metric, with its arguments."""
    if metric.computed_by is None:
        return ""
    arguments = ", ".join(f"{name} = {value}" for name, value in sorted(metric.arguments.items()))
    return f"{metric.computed_by} ({arguments})" if arguments else metric.computed_by


def _class_rows(metric: Measurement) -> tuple[MetricRow, ...]:
    """Classes with the largest drops, the largest first."""
    worst = sorted(metric.by_class, key=lambda one: -one.drop)[:_MOST_CLASSES]
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
