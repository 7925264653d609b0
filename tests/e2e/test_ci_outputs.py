"""What CI servers show: test cases, and the page of the build."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from tests.each_case import table

VARIABLE = "GITHUB_STEP_SUMMARY"
COMMANDS = table("""
    evaluate --min sqnr_db=99                                                  | ### ptq report
    quantize model.onnx --data calib.npz --eval-data eval.npz --min sqnr_db=99 | ### ptq report
    gate ptq-run/report.json --min sqnr_db=99                                  | ### ptq gate
""")


def test_each_gate_is_a_test_case(folder: Path, ptq: Any) -> None:
    assert ptq("evaluate --min sqnr_db=99 --set gate.max_size=1MB").status == 3
    suites = Xml.parse(folder / "ptq-run/junit.xml").getroot()
    assert [case.get("name") for case in suites.iter("testcase")] == [
        "sqnr_db at least 99.00 dB",
        "size of the quantized file at most 1 MB",
    ]
    assert (suites.get("tests"), suites.get("failures")) == ("2", "1")


@pytest.mark.parametrize(("words", "title"), COMMANDS)
def test_the_page_of_the_build_gets_the_verdict(folder, ptq, monkeypatch, words, title):
    page = folder / "page.md"
    page.write_text("of an earlier step\n\n")
    monkeypatch.setenv(VARIABLE, str(page))
    assert ptq(words).status == 3
    text = page.read_text()
    assert text.startswith(f"of an earlier step\n\n{title}\n\n**FAIL: 1 of 1 gate failed**\n\n| metric |")
    assert text.count("### ptq") == 1
    assert text.endswith("\n\n")


def test_a_page_that_cannot_be_written_changes_no_verdict(folder, ptq, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(folder))
    outcome = ptq("gate ptq-run/report.json --min sqnr_db=1 --json")
    assert outcome.status == 0
    assert (
        outcome.err.startswith("warning: cannot write the step summary") and "is a directory" in outcome.err
    )


def test_an_error_leaves_the_page_alone(folder: Path, ptq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(folder / "page.md"))
    assert ptq("evaluate --eval-data nowhere.npz").status == 2
    assert not (folder / "page.md").exists()
