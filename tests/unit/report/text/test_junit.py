"""A CI server reads a test case for each gate, and no name can break the XML."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptq_cli.evaluation.document.report_document import Report
from ptq_cli.report.text.gates import report_to_junit
from tests.measured import gate_result

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


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a]]>b", '"&\x1b[2J\x00', "\ud800", "\uffff"])
def test_a_hostile_name_is_text(report: Report, name: str) -> None:
    hostile = replace(report, gates=(gate_result(f"sqnr_db[{name}]", "min", 25.0, 20.0),))
    (case,) = read(hostile).iter("testcase")
    assert str(case.get("name")).startswith("sqnr_db[")
    assert len(case) == 2


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_makes_xml(report: Report, text: str) -> None:
    assert len(list(read(replace(report, gates=(gate_result(text, "min", 1.0, 0.0),))).iter("testcase"))) == 1
