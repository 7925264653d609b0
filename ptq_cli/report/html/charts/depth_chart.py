"""SQNR along a network or a tuning, and sensitivity against multiply-accumulates, as geometry."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ptq_cli.core.words import format_count
from ptq_cli.evaluation.document.analysis_document import Analysis, LayerAnalysis
from ptq_cli.evaluation.document.ladder import Ladder
from ptq_cli.evaluation.document.stream import Stream
from ptq_cli.evaluation.document.tensor_rows import TensorAnalysis
from ptq_cli.evaluation.trade_offs import LayerDifference
from ptq_cli.report.html.charts.axis_scale import Scale, Tick, largest_in_frame, widened
from ptq_cli.report.html.ranking import Ranking
from ptq_cli.report.text.tables import result_of, verdict_of

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

    ``cards`` are names of the tensors that have a card, in the order of the cards.

    Edge case:
        None with fewer than two activations. A tensor without any error has no point.
    """
    tensors = [item for item in analysis.tensors if item.kind == "activation"]
    anchors = {name: index for index, name in enumerate(cards, 1)}

    def series(kind: str, values: Iterable[float]) -> list[Known]:
        return [
            (index, value, f"{item.name}: {kind} {value:.1f} dB", anchors.get(item.name, 0))
            for index, (item, value) in enumerate(zip(tensors, values, strict=True), 1)
            if math.isfinite(value)
        ]

    accumulated = series("accumulated", (item.sqnr_accumulated_db for item in tensors))
    isolated = series("isolated", (item.sqnr_isolated_db for item in tensors))
    if len(tensors) < 2 or not accumulated + isolated:
        return None
    label = "quantized activations, from input to output"
    return _along_network(label, len(tensors), accumulated, isolated, _lowest(tensors))


def layer_chart(layers: Sequence[LayerDifference]) -> Chart | None:
    """Return the SQNR of each layer's output in both models, in the order of the model.

    Edge case:
        None with fewer than two layers that both models have a finite value of.
    """
    before: list[Known] = []
    after: list[Known] = []
    worst, lost = "", 0.0
    for index, layer in enumerate(layers, 1):
        was, now = layer.sqnr_before, layer.sqnr_after
        if was is None or now is None or not math.isfinite(was) or not math.isfinite(now):
            continue
        text = f"{layer.name}: {was:.1f} dB before, {now:.1f} dB after"
        before.append((index, was, text, index))
        after.append((index, now, text, index))
        if was - now > lost:
            worst, lost = layer.name, was - now
    if len(before) < 2:
        return None
    summary = f"{worst} lost most, {lost:.1f} dB" if lost > 0 else "No layer lost anything"
    return _along_network("layers, from input to output", len(layers), after, before, summary)


def stream_chart(stream: Stream) -> Chart | None:
    """Return the SQNR of the first output by step, on the model's own states and on the float model's.

    Edge case:
        None with fewer than two finite points.
    """
    if not stream.drifts:
        return None
    name, steps = stream.drifts[0].metric, [item.step for item in stream.curve]

    def series(kind: str, found: Sequence[dict[str, float]]) -> list[Known]:
        values = [item.get(name, math.nan) for item in found]
        return [
            (step, value, f"step {step}: {value:.1f} dB on {kind} states", 0)
            for step, value in zip(steps, values, strict=True)
            if math.isfinite(value)
        ]

    free = series("its own", [item.free for item in stream.curve])
    forced = series("the float model's", [item.forced for item in stream.curve])
    if len(free) < 2:
        return None
    return _along_network("steps", stream.longest, free, forced, f"Worst at step {stream.worst_step}")


Known = tuple[int, float, str, int]
"""Where along the network, a finite SQNR in dB, the text, and the row or card that a point links to."""


def _along_network(
    label: str, length: int, first: Sequence[Known], second: Sequence[Known], summary: str
) -> Chart:
    """Return two series of SQNRs from the input of a network to its output."""
    values = [value for _, value, *_ in (*first, *second)]
    highest = largest_in_frame(values)
    along = Scale(low=1.0, high=float(length), start=LEFT + 8, end=WIDTH - RIGHT - 8)
    up = _upward(min(values), highest)
    points, others = (
        tuple(
            Point(x=along.at(index), y=up.at(value), text=text, anchor=anchor)
            for index, value, text, anchor in series
        )
        for series in (first, second)
    )
    return Chart(
        label_x=label,
        label_y="SQNR (dB)",
        ticks_x=along.ticks(6),
        ticks_y=up.ticks(5),
        points=points,
        others=others,
        line=_line(points),
        second=_line(others),
        summary=summary,
        beyond=_beyond(values, highest, "upper"),
    )


def _upward(lowest: float, highest: float) -> Scale:
    """Return the vertical scale of values that are better when higher."""
    low, high = widened(lowest, highest)
    return Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)


def _beyond(values: Iterable[float], highest: float, end: str) -> str:
    """Return which values are drawn at the end of an axis in dB, or nothing.

    Example:
        >>> _beyond([20.0, 30.0, 138.0], 30.0, "upper")
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

    ``rows`` are names of the layers in the order of the table's rows.

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
    # What costs least may lie beyond the end of the axis, what costs most may not.
    highest = largest_in_frame(values) if ranking.by == "sqnr" else max(values)
    up = _upward(min(values), highest)
    up = up if ranking.by == "metric" else replace(up, start=up.end, end=up.start)
    anchors = {name: index for index, name in enumerate(rows, 1)}
    points = tuple(
        Point(
            x=along.at(macs),
            y=up.at(ranking.drawn(value)),
            text=f"{layer.name} ({layer.op}): {ranking.text(value)}, {format_count(macs)} MACs",
            anchor=anchors.get(layer.name, 0),
            integer=layer.integer,
            label=cut_name(layer.name),
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
        beyond=_beyond(values, highest, "lower"),
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


def cut_name(name: str, most: int = CUT) -> str:
    """Return the end of a name, which is what distinguishes layers.

    Example:
        >>> cut_name("stem/Conv"), cut_name("encoder/layers.11/attention/query/MatMul")
        ('stem/Conv', '…11/attention/query/MatMul')
    """
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _line(points: Sequence[Point]) -> str:
    return "".join(f"{'L' if index else 'M'}{point.x:g} {point.y:g}" for index, point in enumerate(points))


# The candidates of a tuning as a chart: their SQNR from the first to the last.


EDGE = 40.0
"""Room for half of the first and of the last name."""
MOST_NUMBERS = 12
"""Numbers that fit below the axis on a phone."""


def ladder_chart(ladder: Ladder) -> Chart | None:
    """Return the SQNR of each candidate, in the order in which they were tried.

    Points that the line goes through were better than all before them; the others are those that were left
    out.

    Edge case:
        None if no candidate has a finite SQNR; one that changes nothing has no point.
    """
    found = [(index, step) for index, step in enumerate(ladder.steps) if math.isfinite(step.sqnr_db)]
    if not found:
        return None
    last = max(1, len(ladder.steps) - 1)
    every = math.ceil(len(ladder.steps) / MOST_NUMBERS)
    along = Scale(low=0.0, high=float(last), start=LEFT + EDGE, end=WIDTH - RIGHT - EDGE)
    values = [step.sqnr_db for _, step in found]
    up = _upward(min(values), max(values))
    points = [
        Point(
            x=along.at(index),
            y=up.at(step.sqnr_db),
            text=f"{step.name}: {step.sqnr_db:.1f} dB, {result_of(step, chosen=index == ladder.chosen)}",
        )
        for index, step in found
    ]
    kept = tuple(point for point, (_, step) in zip(points, found, strict=True) if step.kept)
    return Chart(
        label_x="candidates, in the order in which they were tried",
        label_y="SQNR (dB)",
        ticks_x=tuple(Tick(along.at(index), str(index + 1)) for index in range(0, len(ladder.steps), every)),
        ticks_y=up.ticks(5),
        points=kept,
        others=tuple(point for point in points if point not in kept),
        line=_line(kept),
        summary=verdict_of(ladder),
    )
