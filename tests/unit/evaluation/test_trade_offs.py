"""Several models side by side: which one no other beats, and where their layers differ."""

from dataclasses import replace

import pytest

from ptq_cli.core.errors import UsageError
from ptq_cli.evaluation.document.gate_result import Latency
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.report_changes import compare_reports, layer_differences
from ptq_cli.evaluation.trade_offs import TradeOffs, trade_offs
from ptq_cli.report.html.comparison_page import layer_changes, render_comparison
from ptq_cli.report.html.layer_table import Cell
from ptq_cli.report.text.comparison import trade_off_table
from tests.pages import Network

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
