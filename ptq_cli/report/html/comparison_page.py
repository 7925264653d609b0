"""The page of a comparison: several models side by side, and the layers of two of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.report_changes import WORSE_BY_DB, LayerDifference, ReportChanges
from ptq_cli.evaluation.trade_offs import TradeOffs
from ptq_cli.report.html.layer_table import LAST, Cell, bounded, decibel_cell
from ptq_cli.report.html.page_view import MOST_LAYERS, render
from ptq_cli.report.text.comparison import change_table, difference_table, trade_off_table
from ptq_cli.report.text.numbers import format_value


def render_comparison(
    found: TradeOffs, changes: ReportChanges | None = None, layers: Sequence[LayerDifference] = ()
) -> str:
    """One HTML document that loads nothing else, under the policy of a report's page."""
    value, size = found.float_value, found.float_bytes
    page = {
        "title": f"{len(found.models)} quantized models by {found.metric}",
        "found": found,
        "float_value": format_value(value, found.unit),
        "float_size": format_bytes(size) if size is not None else "",
        "models": trade_off_table(found),
        "metrics": change_table(changes) if changes is not None else None,
        "differences": difference_table(changes) if changes is not None else None,
        "layers": layer_changes(layers[:MOST_LAYERS]),
        "layers_left_out": max(0, len(layers) - MOST_LAYERS),
        "analyzed": changes is not None and changes.worse_layers is not None,
    }
    return render("comparison.html.jinja", page)


@dataclass(frozen=True, kw_only=True)
class ChangedLayer:
    """A layer in both models; ``kind`` is ``"changed"`` or ``"same"``."""

    name: str
    op: str
    before: str
    after: str
    cells: tuple[Cell, Cell, Cell]
    kind: str


def layer_changes(layers: Sequence[LayerDifference]) -> list[ChangedLayer]:
    """A row for each layer, in the order of the model."""
    rows = []
    for layer in layers:
        before, after = layer.sqnr_before, layer.sqnr_after
        change = after - before if before is not None and after is not None else math.nan
        # Two exact layers differ by inf - inf.
        shown = Cell("", LAST) if math.isnan(change) else Cell(f"{change:+.1f} dB", bounded(change))
        rows.append(
            ChangedLayer(
                name=layer.name,
                op=layer.op,
                before=layer.before.placement if layer.before else "not in this model",
                after=layer.after.placement if layer.after else "not in this model",
                cells=(decibel_cell(before), decibel_cell(after), shown),
                kind="changed" if layer.has_moved or abs(change) > WORSE_BY_DB else "same",
            )
        )
    return rows
