"""The page: documents become a view, and the view becomes HTML in which all text is escaped."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.analysis.analysis_document import Analysis
from ptq_cli.evaluation.document.details import Changes
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.report_changes import ReportChanges
from ptq_cli.evaluation.trade_offs import LayerDifference, TradeOffs
from ptq_cli.latency.machine_profile import MachineProfile
from ptq_cli.report.html.change_table import ChangeView, TimeTable, change_view, time_table
from ptq_cli.report.html.charts.axis_scale import TensorCard, tensor_cards
from ptq_cli.report.html.charts.depth_chart import (
    Chart,
    TradeOffChart,
    depth_chart,
    ladder_chart,
    sensitivity_chart,
    trade_off_charts,
)
from ptq_cli.report.html.charts.interval_charts import GateRow, MetricRow, gate_rows, metric_rows
from ptq_cli.report.html.evidence import Evidence
from ptq_cli.report.html.layer_table import MOST_LAYERS as MOST_CHANGED_LAYERS
from ptq_cli.report.html.layer_table import ChangedLayer, LayerTable, layer_changes, layer_chart, layer_table
from ptq_cli.report.html.ranking import Figure, headline, origin_rows, time_rows
from ptq_cli.report.text.summary import (
    Row,
    Table,
    change_table,
    difference_table,
    format_value,
    level_lines,
    placement_line,
    saturation_lines,
    share_of_float,
    verdict_line,
)
from ptq_cli.report.text.tables import ladder_table, trade_off_table

MOST_LAYERS = 3000
MOST_OF_A_NAME, MOST_OF_A_TEXT = 160, 300
"""Longest name and text on the page, in characters; ONNX does not limit names."""
NOT_ANALYZED = (
    "It is not known yet how much each layer loses. This command measures it and writes this page again:"
)


@dataclass(frozen=True, kw_only=True)
class PageInput:
    """What a page is made from.

    Attributes:
        report: the measurements.
        evidence: what the run's models and calibration tell.
        changes: the samples that changed their class; None if that is not known.
        analysis: where the model loses accuracy; None if ``ptq analyze`` has not been run.
        analysis_note: why there is no analysis, and what to do.
        profile: times of the float model's operators; None if they were not measured.
    """

    report: Report
    evidence: Evidence
    changes: Changes | None = None
    analysis: Analysis | None = None
    analysis_note: str = NOT_ANALYZED
    profile: MachineProfile | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything that the template shows."""

    title: str
    verdict: str
    verdict_text: str
    figures: tuple[Figure, ...]
    placement: str
    report: Report
    gates: tuple[GateRow, ...]
    paired: tuple[MetricRow, ...]
    compared: tuple[MetricRow, ...]
    float_size: str
    quantized_size: str
    size_share: str
    float_percent: float
    size_percent: float
    table: LayerTable
    layers_left_out: int
    cards: tuple[TensorCard, ...]
    ladder: Chart | None
    ladder_rows: tuple[Row, ...]
    ladder_header: Row
    depth: Chart | None
    sensitivity: Chart | None
    analyzed: bool
    analysis_note: str
    has_pytorch: bool
    has_pictures: bool
    changes: ChangeView | None
    layer_times: TimeTable | None
    origin: tuple[Row, ...]
    evidence: Evidence
    times: tuple[Row, ...]


def render_page(found: PageInput) -> str:
    """Return the page: one HTML document that loads nothing else.

    The same documents make the same text; two runs on the same input differ only in the times. The template
    engine escapes all text from models and files; scripts and styles are allowed only by their hashes, so
    that a script which got past the escaping would still not run.

    Raises:
        ValueError: the documents are not from the same run.
    """
    return render("page.html.jinja", make_page(found))


def render(name: str, page: object) -> str:
    """Return a page that a template makes of a view, with the style and script of all pages."""
    environment = _environment()
    style, script = (_asset(environment, file) for file in ("style.css", "script.js"))
    return environment.get_template(name).render(
        page=page,
        style=Markup(style),  # noqa: S704 - the package's own file
        script=Markup(script),  # noqa: S704
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def make_page(found: PageInput) -> Page:
    """Return the view of the documents."""
    report, evidence, analysis = found.report, found.evidence, found.analysis
    float_bytes, quantized_bytes = report.model.float_bytes, report.model.quantized_model.bytes
    paired, compared = metric_rows(report)
    changes = change_view(found.changes) if found.changes is not None else None
    drawn = evidence.drawn
    layers = report.layers[:MOST_LAYERS]
    larger = max(float_bytes, quantized_bytes)
    return Page(
        title=Path(report.model.source).name or report.model.source,
        verdict=report.verdict,
        verdict_text=verdict_line(report),
        figures=headline(report, evidence),
        placement=". ".join([*level_lines(report), placement_line(report), *saturation_lines(report)]),
        report=report,
        gates=gate_rows(report),
        paired=paired,
        compared=compared,
        float_size=format_bytes(float_bytes),
        quantized_size=format_bytes(quantized_bytes),
        size_share=share_of_float(quantized_bytes, float_bytes),
        float_percent=round(100 * float_bytes / larger, 1),
        size_percent=round(100 * quantized_bytes / larger, 1),
        table=layer_table(layers, evidence, analysis),
        layers_left_out=len(report.layers) - len(layers),
        cards=tensor_cards(drawn, analysis.tensors if analysis is not None else ()),
        ladder=ladder_chart(report.ladder) if report.ladder is not None else None,
        ladder_rows=ladder_table(report.ladder).rows if report.ladder is not None else (),
        ladder_header=ladder_table(report.ladder).header if report.ladder is not None else (),
        depth=depth_chart(analysis, [tensor.name for tensor in drawn]) if analysis is not None else None,
        sensitivity=sensitivity_chart(analysis, [layer.name for layer in layers])
        if analysis is not None
        else None,
        analyzed=analysis is not None,
        analysis_note=found.analysis_note,
        has_pytorch=any(row.pytorch_value for row in paired),
        has_pictures=changes is not None and any(row.picture for row in changes.rows),
        changes=changes,
        layer_times=time_table(found.profile, layers) if found.profile is not None else None,
        origin=origin_rows(report),
        evidence=evidence,
        times=time_rows(report, analysis),
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ptq_cli.report.html", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_bounded,
    )
    environment.filters["breakable"] = breakable
    environment.filters["whole"] = escape
    return environment


def breakable(name: str) -> Markup:
    """Return a name, escaped, in which lines may break after dots and slashes.

    Example:
        >>> str(breakable("<b>/Conv"))
        '&lt;b&gt;/<wbr>Conv'
    """
    return Markup("<wbr>").join(re.findall(r"[^./]*[./]|[^./]+", _cut(name, MOST_OF_A_NAME)))


def _bounded(value: Any) -> Any:
    """Cut long text; Markup, which the filter ``whole`` returns, stays unchanged."""
    return _cut(value, MOST_OF_A_TEXT) if isinstance(value, str) and not isinstance(value, Markup) else value


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _asset(environment: Environment, name: str) -> str:
    loader: Any = environment.loader
    text: str = loader.get_source(environment, name)[0]
    return text.strip()


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# The page of a comparison: several models side by side, and the layers of two of them.


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
        layers_left_out=max(0, len(layers) - MOST_CHANGED_LAYERS),
        layer_chart=layer_chart(layers),
        analyzed=two is not None and two.changes.worse_layers is not None,
    )
