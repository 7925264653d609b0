"""Several models side by side, and what a report of one says of PyTorch, classes and missing intervals."""

from dataclasses import replace

from ptq_cli.evaluation.document.measurement import ClassValue
from ptq_cli.evaluation.document.report_document import ModelEntry, Report
from ptq_cli.evaluation.interval import Flips
from ptq_cli.report.text.markdown import report_to_markdown
from ptq_cli.report.text.summary import class_table, label_table, no_interval_lines, several_tables
from tests.measured import measurement


def with_first(report: Report, **changes: object) -> Report:
    first, *rest = report.metrics
    return replace(report, metrics=(replace(first, **changes), *rest))  # type: ignore[arg-type]


def test_each_model_has_a_column(report: Report) -> None:
    model = replace(report.model, quantized_model=ModelEntry("b.onnx", "e" * 64, 900_000))
    other = replace(with_first(report, quantized_value=0.82), model=model)
    labeled, compared = several_tables([report, other])
    assert labeled.header == ("metric", "float", "model.int8.onnx", "b.onnx")
    assert labeled.rows[0] == ("top1", "83.00 %", "82.60 %", "82.00 %")
    assert labeled.rows[1] == ("  drop", "", "0.40 points", "1.00 points")
    assert compared.rows[0] == ("sqnr_db", "31.50 dB", "31.50 dB")
    assert compared.rows[-1] == ("size", "1 MB", "900 kB")


def test_pytorch_has_a_column_where_it_was_evaluated(report: Report) -> None:
    found = with_first(report, pytorch_value=0.831)
    assert label_table(found).header[:4] == ("metric", "PyTorch", "float", "quantized")
    assert label_table(found).rows[0][1] == "83.10 %"
    assert several_tables([found, found])[0].rows[0][1:3] == ("83.10 %", "83.00 %")


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
    table = class_table(found, most=2)
    assert [row[0] for row in table.rows] == ["1 class|1", "2 class|2"]
    assert table.rows[0][1:5] == ("10", "100.00 %", "70.00 %", "30.00 points")
    assert "class&#124;1" in report_to_markdown(found)
