"""What changed between two reports is listed, and chance is told from change.

Several models side by side: which one no other beats, and where their layers differ.
"""

from dataclasses import replace

import pytest

from ptq_cli.core.documents import to_json
from ptq_cli.core.errors import AnalysisError, UsageError
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.evaluation.document.gate_result import Latency, Times
from ptq_cli.evaluation.document.measurement import hits_to_text
from ptq_cli.evaluation.document.report_document import AmaxSummary, EvaluationSummary, LayerEntry, Report
from ptq_cli.evaluation.interval import Flips, drop_interval
from ptq_cli.evaluation.report_changes import (
    Change,
    TradeOffs,
    compare_reports,
    layer_differences,
    trade_offs,
)
from ptq_cli.pipeline.run_compare import run_compare
from ptq_cli.report.html.layer_table import Cell
from ptq_cli.report.html.page_view import layer_changes, render_comparison
from ptq_cli.report.text.comparison import (
    change_table,
    difference_table,
    latency_line,
    moved_table,
    size_line,
    trade_off_table,
    worse_line,
    worse_table,
)
from tests.measured import latency_of, measurement
from tests.pages import Network


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


NAMES = ("small", "good", "beaten", "unmeasured")
HOSTILE = "<script>alert(1)</script>"


def variant(report: Report, top1: float, size: int, ratio: float | None) -> Report:
    file = replace(report.model.quantized_model, bytes=size)
    latency = None
    if ratio is not None:
        latency = Latency(
            float_ms=2.0, quantized_ms=2 * ratio, batch_size=1, threads=2, rounds=9, ratio=ratio
        )
    metrics = (replace(report.metrics[0], quantized_value=top1), *report.metrics[1:])
    return replace(
        report,
        model=replace(report.model, quantized_model=file),
        metrics=metrics,
        times=replace(report.times, latency=latency),
    )


@pytest.fixture
def reports(report: Report) -> list[Report]:
    return [
        variant(report, 0.80, 500_000, 0.5),
        variant(report, 0.83, 900_000, 0.6),
        variant(report, 0.82, 1_000_000, 0.7),
        variant(report, 0.82, 900_400, None),
    ]


@pytest.fixture
def found(reports: list[Report]) -> TradeOffs:
    return trade_offs(reports, NAMES)


def test_a_model_is_best_if_no_other_is_as_good_and_smaller_or_faster(found: TradeOffs) -> None:
    assert (found.metric, found.float_value, found.float_bytes) == ("top1", 0.83, 4_000_000)
    assert [model.best_by_size for model in found.models] == [True, True, False, False]
    assert [model.best_by_time for model in found.models] == [True, True, False, False]
    table = trade_off_table(found)
    assert table.header == (
        "model",
        "top1",
        "drop",
        "95 % interval",
        "size",
        "of float",
        "times as fast",
        "best",
    )
    assert table.rows[1] == (
        "good",
        "83.00 %",
        "0.00 points",
        "81.66 to 83.50",
        "900 kB",
        "22.5 %",
        "1.67",
        "size, time",
    )
    assert table.rows[3][-2:] == ("", "")
    untimed = replace(found, models=tuple(replace(model, latency_ratio=None) for model in found.models))
    assert trade_off_table(untimed).header == tuple(name for name in table.header if name != "times as fast")


def test_of_an_error_less_is_better(reports: list[Report]) -> None:
    errors = [
        replace(report, metrics=(replace(report.metrics[0], name="mae", higher_is_better=False),))
        for report in reports
    ]
    found = trade_offs(errors, NAMES)
    assert [model.best_by_size for model in found.models] == [True, False, False, False]
    interval = found.models[0].interval
    assert interval is not None and (interval.low, interval.high) == pytest.approx((0.825, 0.8434))


def test_the_metric_is_one_that_all_reports_have(reports: list[Report]) -> None:
    only = replace(reports[0], metrics=reports[0].metrics[1:])
    assert trade_offs([only, *reports[1:]], NAMES).metric == "sqnr_db"
    assert trade_offs(reports, NAMES, "cosine").metric == "cosine"
    with pytest.raises(UsageError, match="report 'small' has no metric 'top1'") as refused:
        trade_offs([only, *reports[1:]], NAMES, "top1")
    assert refused.value.hint == "all of these reports have: sqnr_db, cosine, top1_agreement, max_abs_error"
    with pytest.raises(UsageError, match="no metric in common"):
        trade_offs([replace(reports[0], metrics=()), reports[1]], NAMES[:2])


def test_what_else_differs_is_noted(reports: list[Report]) -> None:
    first, second, *_ = reports
    assert trade_offs(reports, NAMES).notes == ()
    rewritten = replace(second.model, float_model=replace(second.model.float_model, sha256="f" * 64))
    assert trade_offs([first, replace(second, model=rewritten)], NAMES[:2]).notes == ()
    latency = second.times.latency
    assert latency is not None
    other = replace(
        second,
        model=replace(rewritten, source="other.onnx"),
        evaluation=replace(second.evaluation, data_digest="e" * 64),
        times=replace(second.times, latency=replace(latency, threads=8)),
    )
    notes = " ".join(trade_offs([first, other], NAMES[:2]).notes)
    assert all(word in notes for word in ("different data", "different models", "numbers of threads"))


def test_two_models_have_their_layers_side_by_side() -> None:
    network = Network(8).page_input()
    report, analysis = network.report, network.analysis
    assert analysis is not None
    moved = replace(report.layers[0], integer=False, reason="excluded")
    new = replace(report.layers[1], name="/added")
    after = replace(report, layers=(moved, *report.layers[2:], new))
    lower = tuple(
        replace(layer, sqnr_accumulated_db=(layer.sqnr_accumulated_db or 0) - index)
        for index, layer in enumerate(analysis.layers)
    )
    layers = layer_differences(report, after, (analysis, replace(analysis, layers=lower)))
    rows = {row.name: row for row in layer_changes(layers)}
    first, gone, third = (report.layers[index].name for index in range(3))
    assert (rows[first].before, rows[first].after, rows[first].kind) == (
        "integer",
        "float: excluded",
        "changed",
    )
    assert (rows["/added"].before, rows[gone].after) == ("not in this model",) * 2
    assert rows[third].cells[2] == Cell("-2.0 dB", -2.0)


def test_the_page_escapes_every_text() -> None:
    report = Network(4, name=lambda index: f"{HOSTILE}{index}", text=HOSTILE).page_input().report
    text = render_comparison(
        trade_offs([report, report], (HOSTILE, f"{HOSTILE}2")),
        compare_reports(report, report),
        layer_differences(report, report),
    )
    assert HOSTILE not in text and "&lt;script&gt;" in text
    assert "http" not in text.replace('http-equiv="Content', "")
