"""Gates read well, with the digits that decide and the doubt."""

import math
from dataclasses import replace

import pytest

from ptq_cli.evaluation.document.gate_result import GateResult
from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import ANYWHERE, Interval
from ptq_cli.report.text.gates import doubt_lines, gate_table
from ptq_cli.report.text.summary import verdict_line
from tests.measured import gate_result


@pytest.mark.parametrize(
    ("gate", "row"),
    [
        (
            gate_result("top1", "max_drop", 0.01, 0.01002),
            ("drop of top1", "at most 1.000 points", "1.002 points", "", "FAIL"),
        ),
        (
            gate_result("top1", "max_drop", 0.01, 0.83 - 0.82),
            ("drop of top1", "at most 1.00 points", "1.00 points", "", "pass"),
        ),
        (
            gate_result("sqnr_db", "min", 25.0, math.inf),
            ("sqnr_db", "at least 25.00 dB", "inf dB", "", "pass"),
        ),
        (
            gate_result("cosine", "min", 0.99999, 0.999985),
            ("cosine", "at least 0.999990", "0.999985", "", "FAIL"),
        ),
        (
            gate_result("top1", "max_drop", 0.0083, 0.02, percent=1.0),
            ("drop of top1", "at most 0.83 points (1 % of float)", "2.00 points", "", "FAIL"),
        ),
        (
            gate_result("size", "max_size", 1e6, 1_000_001.0),
            ("size of the quantized file", "at most 1,000,000 bytes", "1,000,001 bytes", "", "FAIL"),
        ),
        (
            gate_result("top1", "max_regression", 0.002, -0.001, percent=0.25),
            (
                "regression of top1",
                "at most 0.20 points (0.25 % of the baseline)",
                "-0.10 points",
                "",
                "pass",
            ),
        ),
        (
            gate_result("saturation", "require_portable", 0.0, 21.0),
            ("layers that can saturate", "none", "21", "", "FAIL"),
        ),
    ],
    ids=["just-above", "rounding-error", "infinite", "bare-number", "percent", "size", "regression", "sums"],
)
def test_a_gate_shows_the_digits_that_decide(report: Report, gate: GateResult, row: tuple[str, ...]) -> None:
    assert gate_table(replace(report, gates=(gate,))).rows == (row,)


def test_a_doubt_says_how_many_samples_would_settle_it(report: Report) -> None:
    assert doubt_lines(report) == [
        "undecided: drop of top1; about 2,200 samples would decide it, this run had 1,000"
    ]
    assert verdict_line(report) == "PASS: 2 gates passed; 1 undecided"


def test_strictness_makes_a_doubt_a_failure(report: Report) -> None:
    strict = replace(report, gates=tuple(replace(gate, strict=True) for gate in report.gates))
    assert [row[-1] for row in gate_table(strict).rows] == ["FAIL, undecided", "pass"]
    assert verdict_line(strict) == "FAIL: 1 of 2 gates failed; 1 undecided"


def test_a_value_without_an_interval_says_why_nothing_decides_it(report: Report) -> None:
    gate = gate_result("sqnr_db", "min", 25.0, 31.5, interval=ANYWHERE, strict=True)
    (found,) = gate_table(replace(report, gates=(gate,))).rows
    assert found[-2:] == ("unknown", "FAIL, undecided")
    single = replace(report, gates=(gate,), evaluation=replace(report.evaluation, samples=1))
    assert doubt_lines(single) == [
        "undecided: sqnr_db; it has no interval: a single sample does not tell how much samples differ"
    ]


def test_at_the_limit_itself_no_number_of_samples_is_named(report: Report) -> None:
    at_limit = gate_result(
        "top1", "max_drop", 0.01, 0.01, interval=Interval(0.0, 0.02, "score"), samples_needed=None
    )
    (line,) = doubt_lines(replace(report, gates=(at_limit,)))
    assert line.endswith("more samples would not decide it")
