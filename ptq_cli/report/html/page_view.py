"""The pages of a report and of a comparison: documents become a view, the view HTML with escaped text."""

import hashlib
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ptq_cli.core.words import format_bytes, visible
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.device_document import DeviceAnswers
from ptq_cli.evaluation.document.report_document import Changes, LayerEntry, Report
from ptq_cli.evaluation.report_changes import WORSE_BY_DB, LayerDifference, ReportChanges, TradeOffs
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.report.html.fact_rows import Evidence, change_view, headline, origin_rows, time_rows, time_table
from ptq_cli.report.html.interval_charts import gate_rows, metric_rows, step_chart
from ptq_cli.report.html.layer_table import LAST, Cell, bounded, decibel_cell, layer_table
from ptq_cli.report.html.tensor_cards import tensor_cards
from ptq_cli.report.text.comparison import change_table, difference_table, trade_off_table
from ptq_cli.report.text.markdown import NUMBERS, device_table, kernel_table, missed_lines, reference_line
from ptq_cli.report.text.numbers import format_value, share_of_float
from ptq_cli.report.text.summary import (
    generation_lines,
    ladder_table,
    level_lines,
    placement_line,
    saturation_lines,
    share_table,
    stream_lines,
    stream_table,
    verdict_line,
)

_MOST_LAYERS = 3000
# Longest name and text on the page, in characters; ONNX does not limit names.
MOST_OF_A_NAME, MOST_OF_A_TEXT = 160, 300
NOT_ANALYZED = (
    "It is not known yet how much each layer loses. This command measures it and writes this page again:"
)


@dataclass(frozen=True, kw_only=True)
class PageInput:
    """The documents that a page is made from, and why there is no analysis."""

    report: Report
    evidence: Evidence
    changes: Changes | None = None
    analysis: Analysis | None = None
    analysis_note: str = NOT_ANALYZED
    profile: MachineProfile | None = None
    devices: DeviceAnswers | None = None


def render_page(found: PageInput) -> str:
    """Page: one HTML document that loads nothing else.

    The same documents make the same text; two runs on the same input differ only in the times. The template
    engine escapes all text from models and files; scripts and styles are allowed only by their hashes, so
    that a script which got past the escaping would still not run.
    """
    return render("page.html.jinja", _page(found))


def render(name: str, page: Mapping[str, Any]) -> str:
    """A page that a template makes of values, with the style and script of all pages."""
    environment = _environment()
    style, script = (_asset(environment, file) for file in ("style.css", "script.js"))
    text = environment.get_template(name).render(
        page=page,
        style=Markup(style),  # noqa: S704 - the package's own file
        script=Markup(script),  # noqa: S704
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    return visible(text)  # Text of a page may come from anywhere, and no part of it needs control characters.


def _page(found: PageInput) -> dict[str, Any]:
    report, evidence, analysis, ladder = found.report, found.evidence, found.analysis, found.report.ladder
    float_bytes, quantized_bytes = report.model.float_bytes, report.model.quantized_model.bytes
    paired, compared = metric_rows(report)
    changes = change_view(found.changes) if found.changes is not None else None
    layers = report.layers[:_MOST_LAYERS]
    larger = max(float_bytes, quantized_bytes)
    return {
        "title": Path(report.model.source).name or report.model.source,
        "verdict_text": verdict_line(report),
        "figures": headline(report, evidence),
        "placement": ". ".join([*level_lines(report), placement_line(report), *saturation_lines(report)]),
        "report": report,
        "gates": gate_rows(report),
        "paired": paired,
        "compared": compared,
        "float_size": format_bytes(float_bytes),
        "quantized_size": format_bytes(quantized_bytes),
        "size_share": share_of_float(quantized_bytes, float_bytes),
        "float_percent": round(100 * float_bytes / larger, 1),
        "size_percent": round(100 * quantized_bytes / larger, 1),
        "table": layer_table(layers, evidence, analysis),
        "layers_left_out": len(report.layers) - len(layers),
        "cards": tensor_cards(evidence.drawn, analysis.tensors if analysis is not None else ()),
        "ladder_table": ladder_table(ladder) if ladder is not None else None,
        "stream": report.stream and step_chart(report.stream),
        "stream_table": stream_table(report),
        "stream_lines": stream_lines(report),
        "generation_lines": generation_lines(report),
        "analyzed": analysis is not None,
        "shares": analysis and share_table(analysis),
        "share_advice": analysis.shares.advice if analysis is not None else (),
        "analysis_note": found.analysis_note,
        "changes": changes,
        "layer_times": time_table(found.profile, layers) if found.profile is not None else None,
        "devices": _device_view(found.devices, layers) if found.devices is not None else None,
        "origin": origin_rows(report),
        "evidence": evidence,
        "times": time_rows(report, analysis),
    }


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
    """A name, escaped, in which lines may break after dots and slashes.

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


def _device_view(found: DeviceAnswers, layers: Sequence[LayerEntry]) -> dict[str, Any]:
    """Devices: a row for each, and the kernels of each that are not exact."""
    anchors = {layer.name: anchor for anchor, layer in enumerate(layers, 1)}
    table = device_table(found)
    kernels = [(item, *kernel_table(item)) for item in found.devices]
    return {
        "found": found,
        "header": table.header,
        "numbers": NUMBERS,
        "rows": [
            (row, anchors.get(item.first_difference or ""))
            for row, item in zip(table.rows, found.devices, strict=True)
        ],
        "reference": reference_line(found),
        "missed": missed_lines(found),
        "kernels": [(item, table, count) for item, table, count in kernels if count],
        "emulated": any(item.emulated for item in found.devices),
    }


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
        "layers": layer_changes(layers[:_MOST_LAYERS]),
        "layers_left_out": max(0, len(layers) - _MOST_LAYERS),
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
