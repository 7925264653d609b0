"""Limits of every kind, from flags and from ptq.toml, by evaluate and from a report; what CI servers show."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from tests.each_case import table


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as on a terminal that is wide enough for them."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def old(folder: Path) -> Path:
    """The report of the run that is there, kept from before."""
    shutil.copy(folder / "ptq-run/report.json", folder / "old.json")
    return folder / "old.json"


def gates(folder: Path) -> list[dict[str, Any]]:
    report: dict[str, Any] = json.loads((folder / "ptq-run/report.json").read_text())
    found: list[dict[str, Any]] = report["gates"]
    return found


def test_the_same_limits_in_ptq_toml(folder: Path, old: Path, ptq: Any) -> None:
    (folder / "ptq.toml").write_text(
        """\
[evaluation]
data = "eval.npz"

[gate]
max_drop = { top1 = "50%" }
min = { cosine = 0.5 }
max_size = "1kB"
baseline = "old.json"
max_regression = { top1 = 0.1 }
strict = true
"""
    )
    outcome = ptq("evaluate")
    assert outcome.status == 3
    assert "size of the quantized file" in outcome.out
    assert [gate["kind"] for gate in gates(folder)] == ["max_drop", "min", "max_size", "max_regression"]
    assert all(gate["strict"] for gate in gates(folder))
    assert not gates(folder)[2]["passed"]


def test_doubt_is_printed_and_strictness_makes_it_a_failure(folder: Path, ptq: Any) -> None:
    # Twenty samples of random labels: nothing is certain within 10 points.
    loose = ptq("gate ptq-run/report.json --max-drop top1=0.1")
    assert loose.status == 0
    assert "pass, undecided" in loose.out
    assert "samples would decide it, this run had 20" in loose.out
    assert "PASS: 1 gate passed; 1 undecided" in loose.out
    strict = ptq("gate ptq-run/report.json --max-drop top1=0.1 --strict")
    assert strict.status == 3
    assert "FAIL: 1 of 1 gate failed; 1 undecided" in strict.out


def test_strict_alone_decides_the_report_s_own_limits(folder: Path, ptq: Any) -> None:
    assert ptq("evaluate --max-drop top1=0.1").status == 0
    assert ptq("gate ptq-run/report.json").status == 0
    assert ptq("gate ptq-run/report.json --strict").status == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model": {"source": "other.pt", "float": "f" * 64}},
            "the baseline is for a different model: 'other.pt'",
        ),
        ({"data": "e" * 64}, "the baseline was measured on different data: 20 samples"),
    ],
    ids=["model", "data"],
)
@pytest.mark.parametrize("command", ["evaluate", "gate ptq-run/report.json"])
def test_a_baseline_that_cannot_be_compared(folder, old, refuse, changes, says, command):
    content = json.loads(old.read_text())
    if "model" in changes:
        content["model"]["source"] = changes["model"]["source"]
        content["model"]["float_model"]["sha256"] = changes["model"]["float"]
    else:
        content["evaluation"]["data_digest"] = changes["data"]
    old.write_text(json.dumps(content))
    refuse(f"{command} --baseline old.json --max-regression sqnr_db=1", "PTQ-GATE-002", says)


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
