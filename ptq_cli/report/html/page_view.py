"""The page: documents become a view, and the view becomes HTML in which all text is escaped."""

import hashlib
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.latency.machine_profile import MachineProfile
from ptq_cli.report.analysis.analysis_document import Analysis
from ptq_cli.report.document.details import Changes
from ptq_cli.report.document.report_document import Report
from ptq_cli.report.html.charts.depth_chart import Chart, depth_chart, sensitivity_chart
from ptq_cli.report.html.charts.interval_charts import GateRow, MetricRow, gate_rows, metric_rows
from ptq_cli.report.html.charts.ladder_chart import ladder_chart
from ptq_cli.report.html.charts.tensor_charts import TensorCard, tensor_cards
from ptq_cli.report.html.evidence import Evidence
from ptq_cli.report.html.facts import Figure, headline, origin_rows, time_rows
from ptq_cli.report.html.tables.change_table import ChangeView, change_view
from ptq_cli.report.html.tables.layer_table import LayerTable, layer_table
from ptq_cli.report.html.tables.time_table import TimeTable, time_table
from ptq_cli.report.text.ladder_table import ladder_table
from ptq_cli.report.text.summary import (
    Row,
    level_lines,
    placement_line,
    saturation_lines,
    share_of_float,
    verdict_line,
)

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
