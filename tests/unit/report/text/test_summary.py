"""Numbers become text in one place."""

import math
from dataclasses import replace

import pytest

from ptq_cli.core.words import format_bytes
from ptq_cli.evaluation.document.measurement import ClassValue, Unit
from ptq_cli.evaluation.document.report_document import ModelEntry, Report
from ptq_cli.evaluation.interval import Flips
from ptq_cli.report.html.interval_charts import metric_rows
from ptq_cli.report.text.gates import gate_table
from ptq_cli.report.text.markdown import report_to_markdown
from ptq_cli.report.text.numbers import format_value
from ptq_cli.report.text.summary import (
    class_table,
    comparison_table,
    label_table,
    no_interval_lines,
    several_tables,
    verdict_line,
)
from tests.each_case import each_case
from tests.measured import gate_result, measurement


@each_case(
    "value, unit, text",
    [
        (0.8213, "share", "82.13 %"),
        (1.0, "share", "100.00 %"),
        (31.517, "decibel", "31.52 dB"),
        (math.inf, "decibel", "inf dB"),
        (-math.inf, "decibel", "-inf dB"),
        (0.99871234, "number", "0.9987"),
        (12345.678, "number", "1.235e+04"),
        (math.nan, "number", "nan"),
    ],
)
def test_values(value: float, unit: Unit, text: str) -> None:
    assert format_value(value, unit) == text


@each_case(
    "size, text",
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (1_500_000, "1.5 MB"),
        (2_000_000_000, "2 GB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_rows_of_several_outputs_say_which(report: Report) -> None:
    assert label_table(report).rows[0][0] == "top1"
    names = [metric.name for metric in report.metrics]
    judged = ["cls" if name in ("top1", "sqnr_db") else "boxes" for name in names]
    metrics = [replace(metric, output=output) for metric, output in zip(report.metrics, judged, strict=True)]
    metrics[-1] = replace(metrics[-1], name=f"{metrics[-1].name}[boxes]")
    several = replace(report, metrics=tuple(metrics))
    assert label_table(several).rows[0][0] == "top1 (cls)"
    assert [row[0] for row in comparison_table(several).rows] == [
        "sqnr_db (cls)",
        "cosine (boxes)",
        "top1_agreement (boxes)",
        "max_abs_error[boxes]",
    ]
    assert "| top1 (cls) |" in report_to_markdown(several)
    assert [row[0] for row in gate_table(several).rows] == ["drop of top1 (cls)", "sqnr_db (cls)"]
    (paired,), compared = metric_rows(several)
    assert (paired.name, compared[0].name) == ("top1 (cls)", "sqnr_db (cls)")
    (metric, *_), (comparison, *_) = (table.rows for table in several_tables([several, several]))
    assert (metric[0], comparison[0]) == ("top1 (cls)", "sqnr_db (cls)")


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        ([], "no gate: no limit was set"),
        ([1.0], "PASS: 1 gate passed"),
        ([1.0, 1.0], "PASS: 2 gates passed"),
        ([1.0, 0.0], "FAIL: 1 of 2 gates failed"),
    ],
    ids=["none", "one", "two", "missed"],
)
def test_the_verdict_line_counts(report: Report, limits: list[float], line: str) -> None:
    gates = tuple(gate_result("top1", "max_drop", limit, 0.5) for limit in limits)
    assert verdict_line(replace(report, gates=gates)) == line


def with_first(report: Report, **changes: object) -> Report:
    first, *rest = report.metrics
    return replace(report, metrics=(replace(first, **changes), *rest))  # type: ignore[arg-type]


def test_each_model_has_a_column(report: Report) -> None:
    model = replace(report.model, quantized_model=ModelEntry("b.onnx", "e" * 64, 900_000))
    other = replace(with_first(report, quantized_value=0.82), model=model)
    labeled, compared = several_tables([report, other])
    assert labeled.header == ("metric", "float", "model_int8.onnx", "b.onnx")
    assert labeled.rows[0] == ("top1", "83.00 %", "82.60 %", "82.00 %")
    assert labeled.rows[1] == ("  drop", "", "0.40 points", "1.00 points")
    assert compared.rows[0] == ("sqnr_db", "31.50 dB", "31.50 dB")
    assert compared.rows[-1] == ("size", "1 MB", "900 kB")


def test_a_drop_without_an_interval_says_why(report: Report) -> None:
    missing = measurement("mine", 0.5, 0.6, no_interval="it is <b>odd</b>")
    found = replace(report, metrics=(*report.metrics, missing))
    assert no_interval_lines(found) == ["note: the drop of mine has no interval: it is <b>odd</b>"]
    assert "<b>" not in report_to_markdown(found)


def test_the_classes_that_lost_most_come_first(report: Report) -> None:
    classes = tuple(
        ClassValue(
            label=label,
            name=f"class|{label}",
            float_value=1.0,
            quantized_value=1.0 - lost / 10,
            flips=Flips.counted(10, lost, 0),
        )
        for label, lost in enumerate([0, 3, 1])
    )
    found = with_first(report, by_class=classes)
    table = class_table(found)
    assert [row[0] for row in table.rows] == ["1 class|1", "2 class|2", "0 class|0"]
    assert table.rows[0][1:5] == ("10", "100.00 %", "70.00 %", "30.00 points")
    assert "class&#124;1" in report_to_markdown(found)
