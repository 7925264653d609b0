"""Gates read well, with the digits that decide and the doubt; a CI server reads a test case for each."""

import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.evaluation.interval import ANYWHERE, Interval
from ptq_cli.report.text.gates import doubt_lines, gate_table, report_to_junit
from ptq_cli.report.text.summary import verdict_line
from tests.each_case import each_case
from tests.measured import gate_result


@each_case(
    "gate, row",
    [
        (("top1", "max_drop", 0.01, 0.01002), "drop of top1 | at most 1.000 points | 1.002 points | FAIL"),
        (("top1", "max_drop", 0.01, 0.83 - 0.82), "drop of top1 | at most 1.00 points | 1.00 points | pass"),
        (("sqnr_db", "min", 25.0, math.inf), "sqnr_db | at least 25.00 dB | inf dB | pass"),
        (("cosine", "min", 0.99999, 0.999985), "cosine | at least 0.999990 | 0.999985 | FAIL"),
        (
            ("top1", "max_drop", 0.0083, 0.02, 1.0),
            "drop of top1 | at most 0.83 points (1 % of float) | 2.00 points | FAIL",
        ),
        (
            ("size", "max_size", 1e6, 1_000_001.0),
            "size of the quantized file | at most 1,000,000 bytes | 1,000,001 bytes | FAIL",
        ),
        (
            ("top1", "max_regression", 0.002, -0.001, 0.25),
            "regression of top1 | at most 0.20 points (0.25 % of the baseline) | -0.10 points | pass",
        ),
        (("saturation", "require_portable", 0.0, 21.0), "layers that can saturate | none | 21 | FAIL"),
    ],
)
def test_a_gate_shows_the_digits_that_decide(report: Report, gate: tuple, row: str) -> None:
    found = gate_result(*gate[:4], percent=gate[4] if len(gate) > 4 else None)
    what, limit, value, result = row.split(" | ")
    assert gate_table(replace(report, gates=(found,))).rows == ((what, limit, value, "", result),)


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


GOLDEN = Path(__file__).parents[3] / "golden" / "junit.xml"


def read(report: Report) -> Xml.Element:
    return Xml.fromstring(report_to_junit(report).encode())


def test_the_file_is_as_it_was(report: Report) -> None:
    assert report_to_junit(report) == GOLDEN.read_text(encoding="utf-8")


def test_a_missed_gate_is_a_failure(report: Report) -> None:
    gates = (*report.gates, gate_result("size", "max_size", 1e6, 2e6))
    suites = read(replace(report, gates=gates))
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("3", "1", "0")
    (failure,) = suites.iter("failure")
    assert (failure.get("type"), failure.get("message")) == ("failed", "measured: 2 MB")
    assert suites[0][2].get("name") == "size of the quantized file at most 1 MB"
    assert suites[0][2].find("failure") is failure


def test_a_doubt_is_said_and_fails_when_strict(report: Report) -> None:
    assert "undecided: drop of top1" in str(read(report)[0][0].findtext("system-out"))
    strict = read(replace(report, gates=tuple(replace(gate, strict=True) for gate in report.gates)))
    (failure,) = strict.iter("failure")
    assert failure.get("type") == "undecided"
    assert "about 2,200 samples would decide it" in str(failure.text)


def test_no_limit_is_an_empty_suite(report: Report) -> None:
    suites = read(replace(report, gates=()))
    assert [suite.get("tests") for suite in suites] == ["0"]


@each_case("name", ["<script>alert(1)</script>", "a]]>b", '"&\x1b[2J\x00', "\ud800", "\uffff"])
def test_a_hostile_name_is_text(report: Report, name: str) -> None:
    hostile = replace(report, gates=(gate_result(f"sqnr_db[{name}]", "min", 25.0, 20.0),))
    (case,) = read(hostile).iter("testcase")
    assert str(case.get("name")).startswith("sqnr_db[")
    assert len(case) == 2


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_makes_xml(report: Report, text: str) -> None:
    assert len(list(read(replace(report, gates=(gate_result(text, "min", 1.0, 0.0),))).iter("testcase"))) == 1
