"""Axes of drawings: round marks, and an end that one far value does not push away.

The SQNR over the steps of recordings as two lines.

Metrics and gates with their intervals drawn.
"""

import math
import re
from dataclasses import replace

import pytest

from ptq_cli.evaluation.document.measurement import StepDrift, StepErrors, Stream
from ptq_cli.evaluation.interval import Interval
from ptq_cli.report.html.interval_charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    STRIP_WIDTH,
    TOP,
    Scale,
    gate_rows,
    metric_rows,
    nice_values,
    step_chart,
)
from tests.each_case import each_case
from tests.measured import gate_result, measurement
from tests.pages import Network


@each_case("low, high", [(0.0, 1.0), (-3.7, 0.2), (1e-9, 3e-9), (-1e30, 1e30), (99.9, 100.0)])
def test_marks_are_few_round_and_within(low: float, high: float) -> None:
    values = nice_values(low, high, 5)
    assert 2 <= len(values) <= 7
    slack = (high - low) * 1e-6
    assert all(low - slack <= value <= high + slack for value in values)


def test_a_value_beyond_an_end_stands_at_the_end() -> None:
    scale = Scale(low=0.0, high=10.0, start=100.0, end=0.0)
    assert [scale.at(value) for value in (-1.0, 0.0, 2.5, 10.0, 99.0)] == [100.0, 100.0, 75.0, 0.0, 0.0]
    assert [tick.text for tick in scale.ticks(5)] == ["0", "2", "4", "6", "8", "10"]


DRIFT = StepDrift(metric="sqnr_db", unit="decibel", first=40.0, last=20.0, loss=20.0, forced_loss=1.0)


def stream(own: list[float], forced: float = 40.0) -> Stream:
    curve = tuple(
        StepErrors(step=step, steps=1, samples=3, free={"sqnr_db": value}, forced={"sqnr_db": forced})
        for step, value in enumerate(own)
    )
    return Stream(
        carried={"h_out": "h"},
        recordings=3,
        longest=len(own),
        forced=(),
        curve=curve,
        worst_step=len(own) - 1,
        drifts=(DRIFT,),
    )


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_growing_errors_descend_from_left_to_right() -> None:
    chart = step_chart(stream([40.0, 35.0, 30.0, 24.0]))
    xs, ys = zip(*points(chart.own), strict=True)
    assert xs == tuple(sorted(xs)) and ys == tuple(sorted(ys)), "lower is worse"
    assert all(LEFT <= x <= RIGHT for x in xs) and all(TOP <= y <= BOTTOM for y in ys)
    assert {y for _, y in points(chart.forced)} == {ys[0]}
    assert chart.caption == "Worst at step 3."


def test_a_step_that_is_almost_exact_does_not_squeeze_the_others() -> None:
    chart = step_chart(stream([138.0, 38.0, 35.0, 30.0, 33.0, 24.0]))
    ys = [y for _, y in points(chart.own)]
    assert ys[0] == TOP and max(ys) - ys[1] > (BOTTOM - TOP) / 2
    assert chart.caption.endswith("Values above 40.8 dB are drawn at the upper end.")


def test_there_is_no_line_without_two_finite_values() -> None:
    assert step_chart(stream([math.inf, 30.0])) is None
    assert step_chart(replace(stream([40.0, 30.0]), drifts=())) is None
    assert len(points(step_chart(stream([40.0, math.nan, 30.0])).own)) == 2


REPORT = Network(12).page_input().report


def test_a_drop_lies_between_the_ends_of_its_interval_and_no_drop_is_marked() -> None:
    (row,), _ = metric_rows(REPORT)
    strip = row.strip
    assert strip is not None and strip.reference is not None
    assert 0 < strip.low < strip.reference < strip.value < strip.high < STRIP_WIDTH
    assert (row.float_value, row.quantized_value, row.drop, row.interval) == (
        "83.00 %",
        "82.60 %",
        "0.40 points",
        "-0.20 to 1.20",
    )
    assert row.note.startswith("12 lost, 8 gained; McNemar p = 0.5")
    assert [one.drop for one in row.classes] == ["25.00 points"]


def test_drops_of_shares_have_one_scale() -> None:
    wide = replace(REPORT.metrics[0], name="top5", drop_interval=Interval(-0.1, 0.1, "score"))
    rows, _ = metric_rows(replace(REPORT, metrics=(REPORT.metrics[0], wide)))
    first, second = rows[0].strip, rows[1].strip
    assert first.reference == second.reference
    assert second.low < first.low < first.high < second.high


def test_other_drops_have_a_scale_of_their_own() -> None:
    small, large = (
        measurement(
            name,
            2 * size,
            size,
            unit="number",
            needs_labels=True,
            higher_is_better=False,
            drop_interval=Interval(0.0, 2 * size, "bootstrap"),
        )
        for name, size in (("mse", 1e-6), ("mae", 1e3))
    )
    rows, _ = metric_rows(replace(REPORT, metrics=(small, large)))
    first, second = rows[0].strip, rows[1].strip
    assert (first.low, first.value, first.high) == (second.low, second.value, second.high)


def test_a_metric_of_the_users_says_what_it_is_and_why_it_has_no_interval() -> None:
    metric = replace(
        REPORT.metrics[0],
        drop_interval=None,
        flips=None,
        no_interval="it is no mean over samples",
        computed_by="torchmetrics.classification:MulticlassF1Score",
        arguments={"num_classes": "10", "average": '"macro"'},
    )
    (row,), _ = metric_rows(replace(REPORT, metrics=(metric,)))
    assert row.note == "it is no mean over samples"
    assert (
        row.made_by == 'torchmetrics.classification:MulticlassF1Score (average = "macro", num_classes = 10)'
    )
    assert row.strip is not None and row.strip.low == row.strip.high == row.strip.value


def test_of_many_classes_those_that_lost_most_are_shown() -> None:
    (one,) = REPORT.metrics[0].by_class
    many = tuple(
        replace(one, label=index, name="", quantized_value=0.75 - index / 1000) for index in range(250)
    )
    (row,), _ = metric_rows(replace(REPORT, metrics=(replace(REPORT.metrics[0], by_class=many),)))
    assert [found.name for found in row.classes] == [str(index) for index in range(249, 149, -1)]
    assert row.classes_left_out == 150


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_written_and_not_drawn(value: float) -> None:
    metric = measurement("x", value, value, needs_labels=False)
    compared = measurement("y", value, needs_labels=False)
    gates = (gate_result("y", "min", 1.0, value),)
    (row,), (other,) = metric_rows(replace(REPORT, metrics=(metric, compared)))
    (gate,) = gate_rows(replace(REPORT, metrics=(metric, compared), gates=gates))
    assert (row.strip, other.strip, gate.strip) == (None, None, None)
    assert row.float_value == other.quantized_value == gate.cells[2] == str(value)


def test_a_gate_shades_what_its_limit_allows() -> None:
    gates = (
        gate_result(
            "top1", "max_drop", 0.01, 0.004, interval=Interval(-0.002, 0.012, "score"), samples_needed=2214
        ),
        gate_result("sqnr_db", "min", 25.0, 31.5, interval=Interval(31.2, 31.9, "bootstrap")),
        gate_result("size", "max_size", 400_000.0, 500_000.0),
    )
    rows = gate_rows(replace(REPORT, gates=gates))
    assert [row.state for row in rows] == ["undecided", "pass", "fail"]
    for row, inside in zip(rows, (True, True, False), strict=True):
        assert row.strip is not None and row.strip.allowed is not None
        low, high = row.strip.allowed
        assert (low <= row.strip.value <= high) is inside
    assert rows[0].doubt.startswith("undecided: drop of top1; about 2,200 samples")


def test_a_strict_doubt_is_a_failure() -> None:
    gate = gate_result(
        "top1", "max_drop", 0.01, 0.004, interval=Interval(-0.002, 0.012, "score"), strict=True
    )
    (row,) = gate_rows(replace(REPORT, gates=(gate,)))
    assert (row.state, row.cells[4]) == ("fail", "FAIL, undecided")
