"""The layers as a table that can be sorted and searched; columns that would be empty are left out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ptq_cli.core.tensors import format_shape
from ptq_cli.core.words import format_count
from ptq_cli.evaluation.document.analysis_document import Analysis, LayerAnalysis
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.report.html.fact_rows import Evidence, LayerEvidence, TensorEvidence
from ptq_cli.report.text.numbers import format_drop, format_range, format_share

DTYPE = "Dtype"
_NOT_FINITE = "NaN"
LAST = 1e99  # sort key of a cell without a number, which comes after all numbers


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
    """A layer: its cells, the card of its tensor (0 for none), and the texts at the end of its row."""

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
    """Table of these layers."""
    found = {item.name: item for item in evidence.layers}
    by_name = {item.name: item for item in evidence.tensors}
    cards = {item.name: index for index, item in enumerate(evidence.drawn, 1)}
    analyzed = {item.name: item for item in analysis.layers} if analysis is not None else {}
    known = []
    for layer in layers:
        own = found.get(layer.name)
        tensor = by_name.get(own.tensor) if own is not None else None
        known.append(_Known(layer, own, tensor, analyzed.get(layer.name)))
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


@dataclass(frozen=True)
class Ranking:
    """Measure of a layer's sensitivity: the drop of ``metric``, or without one the SQNR of the output."""

    metric: str = ""
    unit: Unit = "number"

    @classmethod
    def of(cls, analysis: Analysis | None) -> "Ranking":
        """Measure that an analysis ranks by: the SQNR if its metric has no drop."""
        metric = analysis.metric if analysis is not None and analysis.order != "sqnr" else None
        if metric is None or metric.float_value is None:
            return cls()
        return cls(metric.name, cast(Unit, metric.unit))

    @property
    def meaning(self) -> str:
        """Title of the column."""
        if not self.metric:
            return "SQNR of the output with only this layer quantized (dB)"
        points = " in points" if self.unit == "share" else ""
        return f"Drop of {self.metric}{points} with only this layer quantized"

    def cell(self, layer: LayerAnalysis | None) -> Cell:
        """Value of a layer. NaN is sorted as the worst, which is the largest drop, or the smallest SQNR."""
        if layer is None or layer.sensitivity is None:
            return Cell("", LAST)
        found = layer.sensitivity
        value = found.drop_only_quantized if self.metric else found.sqnr_only_quantized_db
        if value is None:
            return Cell("", LAST)
        if math.isnan(value):
            return Cell(_NOT_FINITE, LAST / 10 if self.metric else -LAST)
        return Cell(format_drop(value, self.unit) if self.metric else f"{value:.1f} dB", value)


def _columns(analysis: Analysis | None) -> list[tuple[TableColumn, Callable[[_Known], Cell]]]:
    ranking = Ranking.of(analysis)
    return [
        (TableColumn("Op", "operator", False), lambda item: Cell(item.layer.op)),
        (
            TableColumn("Runs on", "whether the layer computes in integers or in floats", False),
            lambda item: Cell("integer" if item.layer.integer else "float"),
        ),
        (
            TableColumn(DTYPE, "type of its output, and of its weight if that is quantized", False),
            lambda item: Cell(item.found.dtype if item.found else ""),
        ),
        (
            TableColumn("Shape", "shape of its output", False),
            lambda item: Cell(format_shape(item.found.shape) if item.found else ""),
        ),
        (TableColumn("Range", "range that the integers of its output cover", True), _range),
        (TableColumn("Clipped", "share of its output's values that are beyond the range", True), _clipped),
        (
            TableColumn("SQNR acc.", "accumulated: SQNR of its output with the whole model quantized", True),
            lambda item: decibel_cell(item.analyzed and item.analyzed.sqnr_accumulated_db),
        ),
        (
            TableColumn("SQNR isol.", "isolated: SQNR of its output with nothing else quantized", True),
            lambda item: decibel_cell(item.analyzed and item.analyzed.sqnr_isolated_db),
        ),
        (TableColumn("Sensitivity", ranking.meaning, True), lambda item: ranking.cell(item.analyzed)),
        (TableColumn("MACs", "multiply-accumulates per sample", True), _macs),
    ]


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


def decibel_cell(value: float | None) -> Cell:
    """An SQNR; NaN is sorted as the worst."""
    if value is None:
        return Cell("", LAST)
    if math.isnan(value):
        return Cell(_NOT_FINITE, -LAST)
    return Cell("exact" if value == math.inf else f"{value:.1f} dB", bounded(value))


def bounded(value: float) -> float:
    """A key that is sorted before cells without a number."""
    return max(-LAST / 10, min(value, LAST / 10))


def _macs(item: _Known) -> Cell:
    count = item.analyzed.multiply_accumulates if item.analyzed is not None else None
    return Cell(format_count(float(count)) if count else "", float(count) if count else LAST)
