"""Where things stand in a drawing."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ptq_cli.evaluation.interval import Interval
from ptq_cli.report.html import page_view
from ptq_cli.report.html.charts.axis_scale import HEIGHT as BARS_HEIGHT
from ptq_cli.report.html.charts.axis_scale import Scale, nice_values, tensor_cards
from ptq_cli.report.html.charts.depth_chart import (
    BOTTOM,
    CROWD,
    HEIGHT,
    LABELLED,
    TOP,
    WIDTH,
    depth_chart,
    sensitivity_chart,
)
from ptq_cli.report.html.charts.interval_charts import STRIP_WIDTH, gate_rows, metric_rows
from ptq_cli.report.html.evidence import MethodRange
from tests.each_case import each_case
from tests.measured import gate_result, measurement
from tests.pages import Network

FOUND = Network(12).page_input()
REPORT, ANALYSIS = FOUND.report, FOUND.analysis
assert ANALYSIS is not None


@each_case("low, high", [(0.0, 1.0), (-3.7, 0.2), (1e-9, 3e-9), (-1e30, 1e30), (99.9, 100.0)])
def test_marks_are_few_round_and_within(low: float, high: float) -> None:
    values = nice_values(low, high, 5)
    assert 2 <= len(values) <= 7
    slack = (high - low) * 1e-6
    assert all(low - slack <= value <= high + slack for value in values)


def test_a_logarithmic_scale_of_less_than_a_decade_still_has_marks() -> None:
    assert [tick.text for tick in Scale(low=200.0, high=800.0, start=0.0, end=100.0, log=True).ticks(3)] == [
        "200",
        "400",
        "600",
        "800",
    ]


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


def test_accumulated_errors_descend_along_the_network() -> None:
    chart = depth_chart(ANALYSIS, [f"{tensor.name}" for tensor in FOUND.evidence.drawn])
    assert [point.x for point in chart.points] == sorted({point.x for point in chart.points})
    assert [point.y for point in chart.points] == sorted(point.y for point in chart.points), "lower is worse"
    assert all(isolated.y < point.y for isolated, point in zip(chart.others, chart.points, strict=True))
    assert [point.anchor for point in chart.points] == list(range(1, 13))
    assert all(0 < point.x < WIDTH and 0 < point.y < HEIGHT for point in (*chart.points, *chart.others))


def test_a_tensor_without_error_has_no_point() -> None:
    tensors = tuple(replace(tensor, sqnr_isolated_db=math.inf) for tensor in ANALYSIS.tensors)
    chart = depth_chart(replace(ANALYSIS, tensors=tensors), [])
    assert (len(chart.points), chart.others) == (12, ())
    assert all(point.anchor == 0 for point in chart.points), "no card to lead to"


def test_a_value_far_above_the_others_lies_at_the_end_of_the_axis() -> None:
    first, *rest = ANALYSIS.tensors
    exact = replace(first, sqnr_accumulated_db=138.0, sqnr_isolated_db=139.0)
    chart, near = (
        depth_chart(replace(ANALYSIS, tensors=tensors), [])
        for tensors in ((exact, *rest), tuple(ANALYSIS.tensors))
    )
    assert chart is not None and near is not None and near.beyond == ""
    assert chart.points[0].y < min(point.y for point in chart.others[1:]) - 5
    assert "138.0 dB" in chart.points[0].text
    assert chart.points[-1].y - chart.points[1].y > HEIGHT / 3, "the others still stand apart"
    assert chart.beyond == "2 points at the upper end lie beyond: 138.0 to 139.0 dB"


def test_a_layer_that_costs_far_less_than_the_others_lies_at_the_lower_end() -> None:
    first, *rest = ANALYSIS.layers
    assert first.sensitivity is not None
    harmless = replace(first, sensitivity=replace(first.sensitivity, sqnr_only_quantized_db=150.0))
    chart = sensitivity_chart(replace(ANALYSIS, layers=(harmless, *rest)), [])
    assert chart is not None and "150.0 dB" in chart.beyond
    lowest = max(chart.points, key=lambda point: point.y)
    assert lowest.text.startswith(f"{first.name} (") and lowest.y == HEIGHT - BOTTOM


def test_what_is_drawn_stands_out_from_what_is_behind_it() -> None:
    """WCAG 1.4.11 asks for 3 to 1; text is measured in a browser."""
    style = Path(page_view.__file__).with_name("style.css").read_text(encoding="utf-8")
    schemes = [
        dict(re.findall(r"--(\w+): (#\w+)", part)) for part in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    assert len(schemes) == 3, "light, dark and paper"
    for colors in schemes:
        for name in ("blue", "vermillion", "green", "orange", "pink", "bar"):
            front, back = sorted(_light({**schemes[0], **colors}[one]) for one in (name, "sheet"))
            assert (back + 0.05) / (front + 0.05) >= 3, (name, colors)


def _light(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    parts = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_many_points_are_small_ones() -> None:
    found = [Network(count).page_input().analysis for count in (CROWD - 1, CROWD)]
    charts = [depth_chart(analysis, []) for analysis in found if analysis is not None]
    assert [chart.is_crowded for chart in charts if chart is not None] == [False, True]


def test_no_chart_of_a_single_point() -> None:
    single = replace(ANALYSIS, tensors=ANALYSIS.tensors[:1], layers=ANALYSIS.layers[:1])
    assert depth_chart(single, []) is None
    assert sensitivity_chart(single, []) is None


@pytest.mark.parametrize("order", ["sqnr", "metric"])
def test_the_layer_that_costs_most_stands_on_top(order: str) -> None:
    layers = tuple(
        replace(layer, sensitivity=replace(layer.sensitivity, drop_only_quantized=0.001 * (index * 5 % 12)))
        for index, layer in enumerate(ANALYSIS.layers)
        if layer.sensitivity is not None
    )
    analysis = replace(ANALYSIS, layers=layers, order=order)
    chart = sensitivity_chart(analysis, [layer.name for layer in reversed(layers)])
    top = min(chart.points, key=lambda point: point.y)
    worst = max(
        layers,
        key=lambda layer: (
            layer.sensitivity.drop_only_quantized
            if order == "metric"
            else -layer.sensitivity.sqnr_only_quantized_db
        ),
    )
    assert top.text.startswith(f"{worst.name} (")
    assert worst.name in chart.summary
    assert layers[len(layers) - top.anchor] == worst, "the row that it leads to"
    assert top.y >= TOP
    labels = [point for point in chart.points if point.label]
    assert 1 <= len(labels) <= LABELLED and top in labels


def _heights(bars: str) -> list[float]:
    return [BARS_HEIGHT - float(y) for y in re.findall(r"V([\d.]+)H", bars)]


def test_the_highest_bar_is_that_of_most_values_and_empty_ones_have_no_height() -> None:
    tensor = replace(FOUND.evidence.tensors[0], counts=(0.0, 4.0, 8.0, 0.0))
    (card,) = tensor_cards([tensor])
    heights = _heights(card.bars)
    assert not card.is_log
    assert heights[0] == heights[3] == 0
    assert heights[2] == pytest.approx(2 * heights[1], abs=1)


def test_rare_values_are_seen_on_a_logarithmic_scale() -> None:
    (card,) = tensor_cards([replace(FOUND.evidence.tensors[0], counts=(1e9, 1.0, 1.0, 1.0))])
    assert card.is_log
    assert min(_heights(card.bars)) >= 1


def test_a_range_far_beyond_the_values_does_not_squeeze_them() -> None:
    tensor = replace(
        FOUND.evidence.tensors[0], low=0.0, high=1.0, chosen=MethodRange(method="", low=0.0, high=1000.0)
    )
    (card,) = tensor_cards([tensor])
    end = max(float(x) for x in re.findall(r"H([\d.]+)", card.bars))
    assert end - card.chosen.low > (card.chosen.high - card.chosen.low) * 0.49


def test_the_methods_that_chose_the_range_of_the_file_are_told() -> None:
    (card,) = tensor_cards(FOUND.evidence.tensors[:1], ANALYSIS.tensors)
    assert [span.method for span in card.spans if span.chosen] == ["percentile"]
    assert "SQNR: accumulated 48.00 dB" in card.facts
    assert (card.finding, card.remedy) == (Network().text, "--amax mse")
    assert len(tensor_cards([replace(FOUND.evidence.tensors[0], counts=())])[0].bars) == 0
