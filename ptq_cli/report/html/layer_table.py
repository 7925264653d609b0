"""The layers as a table that can be sorted and searched; columns that would be empty are left out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ptq_cli.core.tensors import format_shape
from ptq_cli.core.words import format_count
from ptq_cli.evaluation.analysis.analysis_document import Analysis, LayerAnalysis
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.evaluation.report_changes import WORSE_BY_DB
from ptq_cli.evaluation.trade_offs import LayerDifference
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
from ptq_cli.report.html.evidence import Evidence, LayerEvidence, TensorEvidence
from ptq_cli.report.html.ranking import Ranking
from ptq_cli.report.text.tables import format_range, format_share

DTYPE = "Dtype"
NOT_FINITE = "NaN"
LAST = 1e99
"""Sort key of a cell without a number, which comes after all numbers."""


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and the number to sort by, or None to sort by the text."""

    text: str
    key: float | None = None


@dataclass(frozen=True)
class TableColumn:
    """A column's title, what it means, and whether it holds numbers."""

    title: str
    meaning: str
    is_number: bool


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """A layer: its cells, the card of its tensor (0 for none), and the texts at the end of its row.

    Attributes:
        reason: why it stays float.
        finding: why it loses more accuracy than others.
        remedy: flags to try.
    """

    anchor: int
    name: str
    integer: bool
    reason: str
    cells: tuple[Cell, ...]
    card: int
    finding: str
    remedy: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Its reason and its finding, if any; the reason only if the finding does not repeat it."""
        said = self.reason in self.finding
        return tuple(filter(None, ("" if said else self.reason, self.finding)))


@dataclass(frozen=True)
class LayerTable:
    """Columns between the layer's name and its reason, and a row for each layer in the model's order."""

    columns: tuple[TableColumn, ...]
    rows: tuple[LayerRow, ...]

    @property
    def has_reasons(self) -> bool:
        """Whether some layer has a reason, a finding, or something to try."""
        return any(row.notes or row.remedy for row in self.rows)

    @property
    def dtype(self) -> int:
        """Index of the column of types, the only one besides the names that may wrap; -1 without one."""
        return next((index for index, column in enumerate(self.columns) if column.title == DTYPE), -1)


@dataclass(frozen=True)
class _Known:
    layer: LayerEntry
    found: LayerEvidence | None
    tensor: TensorEvidence | None
    analyzed: LayerAnalysis | None


def layer_table(layers: Sequence[LayerEntry], evidence: Evidence, analysis: Analysis | None) -> LayerTable:
    """Return the table of these layers."""
    found = {item.name: item for item in evidence.layers}
    by_name = {item.name: item for item in evidence.tensors}
    cards = {item.name: index for index, item in enumerate(evidence.drawn, 1)}
    analyzed = {item.name: item for item in analysis.layers} if analysis is not None else {}
    known = [_know(layer, found.get(layer.name), by_name, analyzed) for layer in layers]
    columns = _columns(analysis)
    cells = [tuple(make(item) for _, make in columns) for item in known]
    used = [index for index in range(len(columns)) if any(row[index].text for row in cells)]
    rows = tuple(
        LayerRow(
            anchor=anchor,
            name=item.layer.name,
            integer=item.layer.integer,
            reason=item.layer.reason,
            cells=tuple(row[index] for index in used),
            card=cards.get(item.tensor.name, 0) if item.tensor is not None else 0,
            finding=item.analyzed.finding if item.analyzed is not None else "",
            remedy=item.analyzed.remedy if item.analyzed is not None else "",
        )
        for anchor, (item, row) in enumerate(zip(known, cells, strict=True), 1)
    )
    return LayerTable(tuple(columns[index][0] for index in used), rows)


def _know(
    layer: LayerEntry,
    found: LayerEvidence | None,
    tensors: Mapping[str, TensorEvidence],
    analyzed: Mapping[str, LayerAnalysis],
) -> _Known:
    tensor = tensors.get(found.tensor) if found is not None else None
    return _Known(layer, found, tensor, analyzed.get(layer.name))


def _columns(analysis: Analysis | None) -> list[tuple[TableColumn, Callable[[_Known], Cell]]]:
    ranked = Ranking.of(analysis)
    return [
        (TableColumn("Op", "operator", False), lambda item: Cell(item.layer.op)),
        (TableColumn("Runs on", "whether the layer computes in integers or in floats", False), _runs_on),
        (
            TableColumn("Dtype", "type of its output, and of its weight if that is quantized", False),
            lambda item: Cell(item.found.dtype if item.found else ""),
        ),
        (TableColumn("Shape", "shape of its output", False), _shape),
        (TableColumn("Range", "range that the integers of its output cover", True), _range),
        (TableColumn("Clipped", "share of its output's values that are beyond the range", True), _clipped),
        (
            TableColumn("SQNR acc.", "accumulated: SQNR of its output with the whole model quantized", True),
            _accumulated,
        ),
        (
            TableColumn("SQNR isol.", "isolated: SQNR of its output with nothing else quantized", True),
            _isolated,
        ),
        (TableColumn("Sensitivity", ranked.label, True), lambda item: _sensitivity(item.analyzed, ranked)),
        (TableColumn("MACs", "multiply-accumulates per sample", True), _macs),
    ]


def _runs_on(item: _Known) -> Cell:
    return Cell("integer" if item.layer.integer else "float")


def _shape(item: _Known) -> Cell:
    return Cell(format_shape(item.found.shape) if item.found is not None else "")


def _range(item: _Known) -> Cell:
    if item.tensor is None:
        return Cell("", LAST)
    low, high = item.tensor.chosen.low, item.tensor.chosen.high
    return Cell(format_range(low, high), high - low)


def _clipped(item: _Known) -> Cell:
    if item.tensor is None or item.tensor.chosen.clipped is None:
        return Cell("", LAST)
    clipped, values = item.tensor.chosen.clipped, item.tensor.values
    return Cell(format_share(clipped, values), clipped / max(values, 1))


def _accumulated(item: _Known) -> Cell:
    return _decibels(item.analyzed.sqnr_accumulated_db if item.analyzed is not None else None)


def _isolated(item: _Known) -> Cell:
    return _decibels(item.analyzed.sqnr_isolated_db if item.analyzed is not None else None)


def _decibels(value: float | None) -> Cell:
    if value is None:
        return Cell("", LAST)
    if math.isnan(value):
        return Cell(NOT_FINITE, -LAST)
    return Cell("exact" if value == math.inf else f"{value:.1f} dB", max(-LAST / 10, min(value, LAST / 10)))


def _sensitivity(analyzed: LayerAnalysis | None, ranked: Ranking) -> Cell:
    value = ranked.value(analyzed)
    if value is None:
        return Cell("", LAST)
    if math.isnan(value):  # The worst of all; a drop is worse the larger it is.
        return Cell(NOT_FINITE, -LAST if ranked.by == "sqnr" else LAST / 10)
    return Cell(ranked.text(value), value)


def _macs(item: _Known) -> Cell:
    count = item.analyzed.multiply_accumulates if item.analyzed is not None else None
    return Cell(format_count(float(count)) if count else "", float(count) if count else LAST)


# The layers of two quantized models side by side: as a table, and as their SQNR along the network.


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
        numbers=(
            _change_decibels(before),
            _change_decibels(after),
            "" if shown is None else f"{shown:+.1f} dB",
        ),
        keys=(_key(before), _key(after), _key(shown)),
        kind="changed" if has_changed else "same",
    )


def _place(layer: LayerEntry | None) -> str:
    if layer is None:
        return "not in this model"
    return "integer" if layer.integer else f"float: {layer.reason}"


def _change_decibels(value: float | None) -> str:
    if value is None:
        return ""
    return "exact" if value == math.inf else "NaN" if math.isnan(value) else f"{value:.1f} dB"


def _key(value: float | None) -> float:
    if value is None:
        return LAST
    return -LAST / 10 if math.isnan(value) else max(-LAST / 10, min(value, LAST / 10))


def _line(points: Sequence[Point]) -> str:
    return "".join(f"{'L' if index else 'M'}{point.x:g} {point.y:g}" for index, point in enumerate(points))
