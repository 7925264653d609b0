"""Accuracy of several models against what they take, as geometry."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.trade_offs import ComparedModel, TradeOffs
from ptq_cli.report.html.charts.axis_scale import Scale, Tick, nice_values, widened
from ptq_cli.report.html.charts.depth_chart import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, cut_name
from ptq_cli.report.text.summary import format_value

LEFT = 70.0
"""Room for values such as ``85.25 %`` beside the axis."""
RADIUS = 9.0
LETTER, LINE = 6.8, 14.0
"""Width of a letter, and height of a line."""
LONGEST = 24
"""Longest name in a drawing; the table has the full name."""


@dataclass(frozen=True, kw_only=True)
class ModelPoint:
    """A model in the drawing: its row in the table, its point, and the ends of its interval.

    The label begins at ``label_x``, or ends there where it stands left of the point; it is empty where names
    or points beside it leave no room.
    """

    number: int
    x: float
    y: float
    high: float
    low: float
    text: str
    best: bool
    label: str
    label_x: float = 0.0
    label_y: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TradeOffChart:
    """Models over two axes; ``front`` goes through those that no other beats, as an SVG path."""

    anchor: str
    title: str
    label_x: str
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    points: tuple[ModelPoint, ...]
    front: str
    float_y: float | None
    summary: str


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """What models are drawn against: its words, its value of a model, and how that is written."""

    anchor: str
    label: str
    cost: Callable[[ComparedModel], float | None]
    write: Callable[[float], str]
    is_best: Callable[[ComparedModel], bool]


SIZE = _Axis(
    anchor="size",
    label="size of the quantized file",
    cost=lambda model: float(model.bytes),
    write=lambda value: format_bytes(round(value)),
    is_best=lambda model: model.best_by_size,
)
TIME = _Axis(
    anchor="time",
    label="time of a run, as a share of the float model's",
    cost=lambda model: model.latency_ratio,
    write=lambda value: f"{100 * value:.3g} %",
    is_best=lambda model: model.best_by_time,
)


def trade_off_charts(found: TradeOffs) -> tuple[TradeOffChart, ...]:
    """Return the metric against size, and against time if at least two models were measured."""
    return tuple(chart for axis in (SIZE, TIME) if (chart := _chart(found, axis)) is not None)


def _chart(found: TradeOffs, axis: _Axis) -> TradeOffChart | None:
    drawn = [
        (number, model, taken)
        for number, model in enumerate(found.models, 1)
        if (taken := axis.cost(model)) is not None and math.isfinite(model.value)
    ]
    if len(drawn) < 2:
        return None
    costs, models = [taken for *_, taken in drawn], [model for _, model, _ in drawn]
    left, right = widened(min(costs), max(costs))
    along = Scale(low=max(left, 0.0), high=right, start=LEFT + RADIUS, end=WIDTH - RIGHT - RADIUS)
    up = _up(models, found)
    points = []
    for number, model, taken in drawn:
        ends = (model.interval.low, model.interval.high) if model.interval else (model.value,)
        value = format_value(model.value, found.unit)
        points.append(
            ModelPoint(
                number=number,
                x=along.at(taken),
                y=up.at(model.value),
                high=min(map(up.at, ends)),
                low=max(map(up.at, ends)),
                text=f"{model.name}: {found.metric} {value}, {axis.write(taken)}",
                best=axis.is_best(model),
                label=cut_name(model.name, LONGEST),
            )
        )
    named = [model.name for model in models if axis.is_best(model)]
    marks_x, marks_y = (nice_values(scale.low, scale.high, count) for scale, count in ((along, 5), (up, 5)))
    return TradeOffChart(
        anchor=axis.anchor,
        title=f"{found.metric} and {axis.anchor}",
        label_x=axis.label,
        ticks_x=tuple(Tick(along.at(value), axis.write(value)) for value in marks_x),
        ticks_y=tuple(
            Tick(up.at(value), text) for value, text in zip(marks_y, _texts(marks_y, found), strict=True)
        ),
        points=_labeled_models(points),
        front=_steps([point for point in points if point.best]),
        float_y=up.at(found.float_value) if found.float_value is not None else None,
        summary=f"On the line: {', '.join(named)}" if named else "",
    )


def _up(models: Sequence[ComparedModel], found: TradeOffs) -> Scale:
    """Return the scale of the values, the better the higher; intervals and the float model's value fit in."""
    values = [model.value for model in models]
    values += [end for model in models if model.interval for end in (model.interval.low, model.interval.high)]
    values += [found.float_value] if found.float_value is not None else []
    finite = [value for value in values if math.isfinite(value)]
    low, high = widened(min(finite), max(finite))
    if found.unit == "share":
        low, high = max(low, 0.0), min(high, 1.0)
    start, end = (HEIGHT - BOTTOM, TOP) if found.higher_is_better else (TOP, HEIGHT - BOTTOM)
    return Scale(low=low, high=high, start=start, end=end)


def _texts(marks: Sequence[float], found: TradeOffs) -> list[str]:
    """Return the marks as text, with as many decimals as tell them apart."""
    texts = [format_value(mark, found.unit) for mark in marks]
    for decimals in range(5):
        texts = [format_value(mark, found.unit, decimals) for mark in marks]
        if len(set(texts)) == len(marks):
            break
    return texts


def _labeled_models(points: Sequence[ModelPoint]) -> tuple[ModelPoint, ...]:
    """Return the points with their labels in places that cover nothing, or without."""
    taken = [(point.x - RADIUS, point.x + RADIUS, point.y) for point in points]
    shown = []
    for point in points:
        width = LETTER * len(point.label)
        for start, y in _places(point, width):
            inside = start >= LEFT and start + width <= WIDTH and TOP <= y <= HEIGHT - BOTTOM
            if inside and not any(
                abs(y - other) < LINE and left < start + width and start < right
                for left, right, other in taken
            ):
                taken.append((start, start + width, y))
                at = start if start > point.x else start + width
                shown.append(replace(point, label_x=round(at, 1), label_y=round(y + 4, 1)))
                break
        else:
            shown.append(replace(point, label=""))
    return tuple(shown)


def _places(point: ModelPoint, width: float) -> Iterator[tuple[float, float]]:
    right, left = point.x + RADIUS + 4, point.x - RADIUS - 4 - width
    for rise in (0.0, -LINE, LINE):
        yield right, point.y + rise
        yield left, point.y + rise


def _steps(points: Sequence[ModelPoint]) -> str:
    """Return a line that goes up at each point, since nothing between two of them was measured."""
    ordered = sorted(points, key=lambda point: point.x)
    return "".join(
        f"H{point.x:g}V{point.y:g}" if index else f"M{point.x:g} {point.y:g}"
        for index, point in enumerate(ordered)
    )
