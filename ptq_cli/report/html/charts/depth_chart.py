"""SQNR along the depth of the network, and sensitivity against multiply-accumulates, as geometry."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ptq_cli.core.short_numbers import format_count
from ptq_cli.report.analysis.analysis_document import Analysis, LayerAnalysis
from ptq_cli.report.analysis.tensor_rows import TensorAnalysis
from ptq_cli.report.html.charts.axis_scale import Scale, Tick, largest_in_frame, widened
from ptq_cli.report.html.ranking import Ranking

WIDTH, HEIGHT = 560.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 14.0, 40.0
LABELLED = 5
"""Number of points that are labeled with their layer's name: the most sensitive ones."""
CUT = 26
"""Longest name in a drawing; the table has the full name."""
LETTER, LINE, GAP = 6.8, 12.0, 9.0
"""Width of a letter, height of a line, and distance between a point and its label."""
LABEL_TURN = 330.0
"""Points further right than this have their label on the left."""
RADIUS = 5.0
CROWD = 60
"""From this many points on, they are drawn smaller."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point: its position, its text, and the row or card that it links to (0 for none)."""

    x: float
    y: float
    text: str
    anchor: int = 0
    integer: bool = True
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Series of points over two axes; ``line`` is the first series as an SVG path, ``second`` the second.

    ``beyond`` says what is drawn at the end of an axis, because it lies far from the others.
    """

    label_x: str
    label_y: str
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]
    points: tuple[Point, ...]
    others: tuple[Point, ...] = ()
    line: str = ""
    second: str = ""
    summary: str = ""
    beyond: str = ""

    @property
    def is_crowded(self) -> bool:
        """Whether there is room for small points only."""
        return len(self.points) >= CROWD


def depth_chart(analysis: Analysis, cards: Sequence[str]) -> Chart | None:
    """Return the SQNR of each quantized activation in graph order, accumulated and isolated.

    Args:
        analysis: the analysis to draw.
        cards: names of the tensors that have a card, in the order of the cards.

    Edge case:
        None with fewer than two activations. A tensor without any error has no point.
    """
    tensors = [item for item in analysis.tensors if item.kind == "activation"]
    values = [value for item in tensors for value in (item.sqnr_accumulated_db, item.sqnr_isolated_db)]
    finite = [value for value in values if math.isfinite(value)]
    if len(tensors) < 2 or not finite:
        return None
    along = Scale(low=1.0, high=float(len(tensors)), start=LEFT + 8, end=WIDTH - RIGHT - 8)
    highest = largest_in_frame(finite)
    low, high = widened(min(finite), highest)
    up = Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)
    anchors = {name: index for index, name in enumerate(cards, 1)}

    def points(kind: str, values: Iterable[float]) -> tuple[Point, ...]:
        return tuple(
            Point(
                x=along.at(index),
                y=up.at(value),
                text=f"{item.name}: {kind} {value:.1f} dB",
                anchor=anchors.get(item.name, 0),
            )
            for index, (item, value) in enumerate(zip(tensors, values, strict=True), 1)
            if math.isfinite(value)
        )

    accumulated = points("accumulated", (item.sqnr_accumulated_db for item in tensors))
    isolated = points("isolated", (item.sqnr_isolated_db for item in tensors))
    return Chart(
        label_x="quantized activations, from input to output",
        label_y="SQNR (dB)",
        ticks_x=along.ticks(6),
        ticks_y=up.ticks(5),
        points=accumulated,
        others=isolated,
        line=_line(accumulated),
        second=_line(isolated),
        summary=_lowest(tensors),
        beyond=beyond_text(finite, highest, "upper"),
    )


def beyond_text(values: Iterable[float], highest: float, end: str) -> str:
    """Return which values are drawn at the end of an axis in dB, or nothing.

    Example:
        >>> beyond_text([20.0, 30.0, 138.0], 30.0, "upper")
        'A point at the upper end lies beyond: 138.0 dB'
    """
    beyond = sorted(value for value in values if value > highest)
    if not beyond:
        return ""
    ends = dict.fromkeys(f"{value:.1f}" for value in (beyond[0], beyond[-1]))
    points = "A point" if len(beyond) == 1 else f"{len(beyond)} points"
    return f"{points} at the {end} end {'lies' if len(beyond) == 1 else 'lie'} beyond: {' to '.join(ends)} dB"


def _lowest(tensors: Sequence[TensorAnalysis]) -> str:
    known = [item for item in tensors if not math.isnan(item.sqnr_accumulated_db)]
    worst = min(known, key=lambda item: item.sqnr_accumulated_db, default=None)
    left_out = len(tensors) - len(known)
    said = []
    if worst is not None:
        said.append(f"The lowest is {worst.name} with {worst.sqnr_accumulated_db:.1f} dB accumulated")
    if left_out:
        said.append(f"{left_out} of {len(tensors)} have no point, because they hold NaN or Inf")
    return ". ".join(said)


def sensitivity_chart(analysis: Analysis, rows: Sequence[str]) -> Chart | None:
    """Return each layer's sensitivity over its multiply-accumulates, the worst at the top.

    Args:
        analysis: the analysis to draw.
        rows: names of the layers in the order of the table's rows.

    Edge case:
        None with fewer than two layers for which both are known.
    """
    ranking = Ranking.of(analysis)
    found = [(layer, ranking.value(layer), layer.multiply_accumulates) for layer in analysis.layers]
    known = [
        (layer, value, float(macs))
        for layer, value, macs in found
        if value is not None and math.isfinite(value) and macs
    ]
    if len(known) < 2:
        return None
    known.sort(key=lambda item: ranking.badness(item[1]), reverse=True)
    works, values = [macs for *_, macs in known], [ranking.drawn(value) for _, value, _ in known]
    along = Scale(low=min(works) / 1.5, high=max(works) * 1.5, start=LEFT + 4, end=WIDTH - RIGHT, log=True)
    start, end = (HEIGHT - BOTTOM, TOP) if ranking.by == "metric" else (TOP, HEIGHT - BOTTOM)
    # What costs least may lie beyond the end of the axis, what costs most may not.
    highest = largest_in_frame(values) if ranking.by == "sqnr" else max(values)
    low, high = widened(min(values), highest)
    up = Scale(low=low, high=high, start=start, end=end)
    anchors = {name: index for index, name in enumerate(rows, 1)}
    points = tuple(
        Point(
            x=along.at(macs),
            y=up.at(ranking.drawn(value)),
            text=f"{layer.name} ({layer.op}): {ranking.text(value)}, {format_count(macs)} MACs",
            anchor=anchors.get(layer.name, 0),
            integer=layer.integer,
            label=_cut(layer.name),
        )
        for layer, value, macs in known
    )
    return Chart(
        label_x="multiply-accumulates per sample",
        label_y=ranking.label,
        ticks_x=along.ticks(5),
        ticks_y=up.ticks(5),
        points=_labeled(points),
        summary=_most_sensitive(analysis, known[0][0], ranking.text(known[0][1])),
        beyond=beyond_text(values, highest, "lower"),
    )


def _most_sensitive(analysis: Analysis, drawn: LayerAnalysis, value: str) -> str:
    """Return the summary; a layer whose quantization alone makes the output NaN has no point."""
    bad = [layer.name for layer in analysis.ranked() if _is_nan(layer)]
    most = f"The most sensitive {'of the others ' if bad else ''}is {drawn.name} with {value}"
    if not bad:
        return most
    if len(bad) == 1:
        return f"With only {bad[0]} quantized, the output holds NaN or Inf, so it has no point. {most}"
    return (
        f"{len(bad)} layers have no point, because the output holds NaN or Inf with only one of them "
        f"quantized. {most}"
    )


def _is_nan(layer: LayerAnalysis) -> bool:
    return layer.sensitivity is not None and math.isnan(layer.sensitivity.sqnr_only_quantized_db)


def _labeled(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points, the first few with labels, if a label would not cover a point or another label."""
    taken = [(point.x - RADIUS, point.x + RADIUS, point.y) for point in points]
    shown = []
    for index, point in enumerate(points):
        start = point.x + GAP if point.x < LABEL_TURN else point.x - GAP - LETTER * len(point.label)
        end = start + LETTER * len(point.label)
        free = not any(
            abs(point.y - y) < LINE and left < end and start < right
            for left, right, y in taken
            if (left, right, y) != (point.x - RADIUS, point.x + RADIUS, point.y)
        )
        if index < LABELLED and free:
            taken.append((start, end, point.y))
            shown.append(point)
        else:
            shown.append(replace(point, label=""))
    return tuple(shown)


def _cut(name: str) -> str:
    """Return the end of a name, which is what distinguishes layers.

    Example:
        >>> _cut("stem/Conv"), _cut("encoder/layers.11/attention/query/MatMul")
        ('stem/Conv', '…11/attention/query/MatMul')
    """
    return name if len(name) <= CUT else f"…{name[1 - CUT :]}"


def _line(points: Sequence[Point]) -> str:
    return "".join(f"{'L' if index else 'M'}{point.x:g} {point.y:g}" for index, point in enumerate(points))
