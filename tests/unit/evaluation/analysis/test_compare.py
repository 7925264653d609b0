"""Two reports whose models were analyzed: which layers got worse."""

from dataclasses import replace

import pytest

from ptq_cli.core.documents import to_json
from ptq_cli.core.errors import AnalysisError
from ptq_cli.evaluation.analysis.analysis_document import Analysis
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.report_changes import compare_reports
from ptq_cli.pipeline.run_compare import run_compare
from ptq_cli.report.text.comparison import latency_line, worse_line, worse_table
from tests.measured import latency_of


def with_ratios(analysis: Analysis, ratios: dict[str, float]) -> Analysis:
    layers = tuple(
        replace(layer, sqnr_accumulated_db=ratios.get(layer.name, layer.sqnr_accumulated_db))
        for layer in analysis.layers
    )
    return replace(analysis, layers=layers)


def test_layers_that_lost_more_than_half_a_decibel(report: Report, analysis: Analysis) -> None:
    first, second = (layer.name for layer in analysis.layers if layer.sqnr_accumulated_db is not None)
    before = with_ratios(analysis, {first: 30.0, second: 30.0})
    after = with_ratios(analysis, {first: 29.6, second: 28.0})
    found = compare_reports(report, report, (before, after))
    assert [(loss.name, loss.worse_by) for loss in found.worse_layers] == [(second, 2.0)]
    assert worse_table(found).rows[0][2:] == ("30.00 dB", "28.00 dB", "2.00 dB")
    assert worse_line(found) == "layers whose output lost more than 0.5 dB: 1"


def test_without_an_analysis_of_both_it_says_what_would_tell(report: Report) -> None:
    found = compare_reports(report, report)
    assert found.worse_layers is None
    assert "ptq analyze" in worse_line(found)
    assert worse_table(found).rows == ()


def test_an_analysis_beside_a_report_counts_if_it_is_of_its_model(report, analysis, tmp_path):
    paths = []
    for name in ("old", "new"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "report.json").write_text(to_json(report))
        (folder / "analysis.json").write_text(to_json(analysis))
        paths.append(folder / "report.json")
    assert run_compare(*paths).worse_layers == ()
    other = replace(analysis.models.quantized_model, sha256="f" * 64)
    stale = replace(analysis, models=replace(analysis.models, quantized_model=other))
    (tmp_path / "new" / "analysis.json").write_text(to_json(stale))
    assert run_compare(*paths).worse_layers is None
    (tmp_path / "new" / "analysis.json").write_text("{")
    with pytest.raises(AnalysisError):
        run_compare(*paths)


def test_the_latency_is_compared_where_it_was_measured(report: Report) -> None:
    timed = replace(report, times=Times(report.created, latency_of(0.5)))
    assert latency_line(compare_reports(report, report)) == ""
    assert latency_line(compare_reports(report, timed)) == (
        "latency: not measured before, 0.50 times float after"
    )
