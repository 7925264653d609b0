"""The page of a comparison: several models side by side, and the layers of two of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.comparison.layer_differences import LayerDifference
from ptq_cli.report.comparison.report_changes import ReportChanges
from ptq_cli.report.comparison.trade_offs import TradeOffs
from ptq_cli.report.html.charts.depth_chart import Chart
from ptq_cli.report.html.charts.trade_off_chart import TradeOffChart, trade_off_charts
from ptq_cli.report.html.page_view import render
from ptq_cli.report.html.tables.layer_changes import MOST_LAYERS, ChangedLayer, layer_changes, layer_chart
from ptq_cli.report.text.compare_summary import change_table, difference_table
from ptq_cli.report.text.summary import Table, format_value
from ptq_cli.report.text.trade_off_table import trade_off_table


@dataclass(frozen=True)
class TwoRuns:
    """What changed between two reports, and each layer of both."""

    changes: ReportChanges
    layers: tuple[LayerDifference, ...]


@dataclass(frozen=True, kw_only=True)
class ComparisonPage:
    """Everything that the template shows."""

    title: str
    found: TradeOffs
    float_value: str
    float_size: str
    charts: tuple[TradeOffChart, ...]
    models: Table
    names: tuple[str, ...]
    metrics: Table | None
    differences: Table | None
    layers: tuple[ChangedLayer, ...]
    layers_left_out: int
    layer_chart: Chart | None
    analyzed: bool


def render_comparison(found: TradeOffs, two: TwoRuns | None) -> str:
    """Return the page: one HTML document that loads nothing else, under the policy of a report's page.

    Args:
        found: the models side by side.
        two: what changed, if there are two models; None if there are more.
    """
    return render("comparison.html.jinja", comparison_page(found, two))


def comparison_page(found: TradeOffs, two: TwoRuns | None) -> ComparisonPage:
    """Return the view of a comparison."""
    layers: Sequence[LayerDifference] = two.layers if two is not None else ()
    value, size = found.float_value, found.float_bytes
    return ComparisonPage(
        title=f"{len(found.models)} quantized models by {found.metric}",
        found=found,
        float_value=format_value(value, found.unit) if value is not None else "",
        float_size=format_bytes(size) if size is not None else "",
        charts=trade_off_charts(found),
        models=trade_off_table(found),
        names=tuple(model.name for model in found.models),
        metrics=change_table(two.changes) if two is not None else None,
        differences=difference_table(two.changes) if two is not None else None,
        layers=layer_changes(layers),
        layers_left_out=max(0, len(layers) - MOST_LAYERS),
        layer_chart=layer_chart(layers),
        analyzed=two is not None and two.changes.worse_layers is not None,
    )
