"""What changed between two reports is listed, and chance is told from change."""

from dataclasses import replace

import pytest

from ptq_cli.core.documents import to_json
from ptq_cli.core.errors import AnalysisError
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.measurement import hits_to_text
from ptq_cli.evaluation.document.report_document import AmaxSummary, EvaluationSummary, LayerEntry, Report
from ptq_cli.evaluation.interval import Flips, drop_interval
from ptq_cli.evaluation.report_changes import Change, compare_reports
from ptq_cli.pipeline.run_compare import run_compare
from ptq_cli.report.text.comparison import (
    change_table,
    difference_table,
    latency_line,
    moved_table,
    size_line,
    worse_line,
    worse_table,
)
from tests.measured import latency_of, measurement


def with_top1(report: Report, right: list[bool]) -> Report:
    share = sum(right) / len(right)
    top1 = measurement("top1", share, 0.83, quantized_hits=hits_to_text(right))
    return replace(report, metrics=(top1, *report.metrics[1:]))


@pytest.fixture
def later(report: Report) -> Report:
    quantized = replace(report.model.quantized_model, sha256="e" * 64, bytes=900_000)
    layers = (replace(report.layers[0], integer=False, reason="excluded"), *report.layers[1:2])
    return replace(
        with_top1(report, [True] * 800 + [False] * 200),
        model=replace(report.model, quantized_model=quantized),
        amax=AmaxSummary("max", {}),
        versions={**report.versions, "ptq": "0.2.0"},
        layers=(*layers, LayerEntry("/new", "Conv", True, "")),
    )


def test_a_report_equals_itself(report: Report) -> None:
    comparison = compare_reports(report, report)
    assert comparison.same_samples
    assert comparison.changes == comparison.layers == ()
    assert {row[-1] for row in change_table(comparison).rows} == {"same"}
    assert size_line(comparison) == "size: 1 MB, unchanged"


def test_a_share_is_compared_sample_by_sample(report: Report, later: Report) -> None:
    top1 = compare_reports(report, later).metrics[0]
    assert top1.worse_by == pytest.approx(0.026)
    assert top1.flips == Flips.counted(1000, lost=26, gained=0)
    assert top1.interval == drop_interval(top1.flips)


def test_on_other_data_nothing_is_paired(report: Report, later: Report) -> None:
    other = replace(later, evaluation=EvaluationSummary("other.npz", 1000, "f" * 64))
    comparison = compare_reports(report, other)
    assert not comparison.same_samples
    assert all(metric.interval is None for metric in comparison.metrics)
    assert Change("evaluation data", "d" * 64, "f" * 64) in comparison.changes


def test_what_changed_is_named(report: Report, later: Report) -> None:
    comparison = compare_reports(report, later)
    assert difference_table(comparison).rows == (
        ("quantized model", "b" * 12, "e" * 12),
        ("amax", "percentile, percentile = 99.999", "max"),
        ("version of ptq", "0.1.0", "0.2.0"),
    )
    assert moved_table(comparison).rows == (
        ("/conv1/Conv", "integer", "float: excluded"),
        ("/fc/Gemm", "integer", ""),
        ("/new", "", "integer"),
    )
    assert size_line(comparison) == "size: 1 MB before, 900 kB after (-10.00 %)"


@pytest.mark.parametrize(
    ("wrong", "result"), [(200, "worse"), (176, "worse, within noise"), (174, "same"), (100, "better")]
)
def test_a_change_within_its_interval_may_be_chance(report: Report, wrong: int, result: str) -> None:
    after = with_top1(report, [True] * (1000 - wrong) + [False] * wrong)
    assert change_table(compare_reports(report, after)).rows[0][-1] == result


def test_a_metric_of_one_report_only(report: Report) -> None:
    fewer = replace(report, metrics=report.metrics[1:])
    gone, new = compare_reports(report, fewer), compare_reports(fewer, report)
    assert change_table(gone).rows[0] == ("top1", "82.60 %", "", "", "", "gone")
    assert change_table(new).rows[-1] == ("top1", "", "82.60 %", "", "", "new")
    assert [metric.name for metric in new.metrics] == [*(m.name for m in fewer.metrics), "top1"]


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
