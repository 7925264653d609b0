"""The layers of two quantized models side by side: as a table, and as their SQNR along the network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.report.comparison.layer_differences import LayerDifference
from ptq_cli.report.comparison.report_changes import WORSE_BY_DB
from ptq_cli.report.document.report_document import LayerEntry
from ptq_cli.report.html.charts.axis_scale import Scale, largest_in_frame, widened
from ptq_cli.report.html.charts.depth_chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Point,
    beyond_text,
)
from ptq_cli.report.html.tables.layer_table import LAST

MOST_LAYERS = 3000


@dataclass(frozen=True, kw_only=True)
class ChangedLayer:
    """A row: a layer in both models; ``keys`` sort the numbers, ``kind`` says whether anything changed."""

    anchor: int
    name: str
    op: str
    before: str
    after: str
    numbers: tuple[str, str, str]
    keys: tuple[float, float, float]
    kind: str


def layer_changes(layers: Sequence[LayerDifference]) -> tuple[ChangedLayer, ...]:
    """Return a row for each layer, in the order of the model."""
    return tuple(_row(anchor, layer) for anchor, layer in enumerate(layers[:MOST_LAYERS], 1))


def layer_chart(layers: Sequence[LayerDifference]) -> Chart | None:
    """Return the SQNR of each layer's output in both models, in the order of the model.

    Edge case:
        None with fewer than two layers that both models have a finite value of.
    """
    known = [
        (index, layer, (layer.sqnr_before, layer.sqnr_after))
        for index, layer in enumerate(layers, 1)
        if layer.sqnr_before is not None
        and layer.sqnr_after is not None
        and math.isfinite(layer.sqnr_before)
        and math.isfinite(layer.sqnr_after)
    ]
    if len(known) < 2:
        return None
    along = Scale(low=1.0, high=float(len(layers)), start=LEFT + 8, end=WIDTH - RIGHT - 8)
    values = [value for *_, pair in known for value in pair]
    highest = largest_in_frame(values)
    low, high = widened(min(values), highest)
    up = Scale(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP)
    series = []
    for which in (0, 1):
        series.append(
            tuple(
                Point(
                    x=along.at(index),
                    y=up.at(pair[which]),
                    text=f"{layer.name}: {pair[0]:.1f} dB before, {pair[1]:.1f} dB after",
                    anchor=index,
                )
                for index, layer, pair in known
            )
        )
    worst = max(known, key=lambda item: item[2][0] - item[2][1])
    lost = worst[2][0] - worst[2][1]
    return Chart(
        label_x="layers, from input to output",
        label_y="SQNR (dB)",
        ticks_x=along.ticks(6),
        ticks_y=up.ticks(5),
        points=series[1],
        others=series[0],
        line=_line(series[1]),
        second=_line(series[0]),
        summary=f"{worst[1].name} lost most, {lost:.1f} dB" if lost > 0 else "No layer lost anything",
        beyond=beyond_text(values, highest, "upper"),
    )


def _row(anchor: int, layer: LayerDifference) -> ChangedLayer:
    before, after = layer.sqnr_before, layer.sqnr_after
    change = after - before if before is not None and after is not None else None
    # Two exact layers differ by inf - inf.
    shown = None if change is None or math.isnan(change) else change
    has_changed = layer.has_moved or (shown is not None and abs(shown) > WORSE_BY_DB)
    return ChangedLayer(
        anchor=anchor,
        name=layer.name,
        op=layer.op,
        before=_place(layer.before),
        after=_place(layer.after),
        numbers=(_decibels(before), _decibels(after), "" if shown is None else f"{shown:+.1f} dB"),
        keys=(_key(before), _key(after), _key(shown)),
        kind="changed" if has_changed else "same",
    )


def _place(layer: LayerEntry | None) -> str:
    if layer is None:
        return "not in this model"
    return "integer" if layer.integer else f"float: {layer.reason}"


def _decibels(value: float | None) -> str:
    if value is None:
        return ""
    return "exact" if value == math.inf else "NaN" if math.isnan(value) else f"{value:.1f} dB"


def _key(value: float | None) -> float:
    if value is None:
        return LAST
    return -LAST / 10 if math.isnan(value) else max(-LAST / 10, min(value, LAST / 10))


def _line(points: Sequence[Point]) -> str:
    return "".join(f"{'L' if index else 'M'}{point.x:g} {point.y:g}" for index, point in enumerate(points))
