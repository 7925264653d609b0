"""``ptq compare`` on reports of a real run."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import ptq_cli
from tests.each_case import each_case, table


@pytest.fixture
def other(folder: Path, ptq: Any) -> Path:
    """A report of the same model, its ranges decided by another method."""
    shutil.copy(folder / "ptq-run/report.json", folder / "old.json")
    assert ptq("export --amax max --output max.onnx").status == 0
    assert ptq("evaluate max.onnx").status == 0
    return folder / "ptq-run/report.json"


def test_it_shows_metrics_size_and_settings(folder: Path, other: Path, ptq: Any) -> None:
    outcome = ptq("report old.json ptq-run/report.json")
    assert (outcome.status, outcome.err) == (0, "")
    for text in ("worse by", "sqnr_db", "size: ", "amax", "max", "quantized model"):
        assert text in outcome.out


def test_json_and_python_say_the_same(folder: Path, other: Path, ptq: Any) -> None:
    document = json.loads(ptq("report old.json ptq-run/report.json --json").out)
    comparison = ptq_cli.compare("old.json", other)
    assert document["same_samples"] is comparison.same_samples is True
    assert [metric["worse_by"] for metric in document["metrics"]] == [m.worse_by for m in comparison.metrics]
    assert {change["what"] for change in document["changes"]} == {"amax", "quantized model"}


def test_three_reports_stand_side_by_side(folder: Path, other: Path, ptq: Any) -> None:
    (folder / "third").mkdir()
    shutil.copy(other, folder / "third/report.json")
    outcome = ptq("report old.json ptq-run third --page all.html")
    assert (outcome.status, outcome.err) == (0, "")
    _, rows = outcome.out.split("─\n")
    assert re.findall(r"^  (\S+)", rows, re.MULTILINE) == ["old", "ptq-run", "third"]
    assert outcome.out.endswith("wrote all.html\n")
    assert "3 quantized models by top1" in (folder / "all.html").read_text(encoding="utf-8")
    document = json.loads(ptq("report old.json ptq-run third --metric sqnr_db --json").out)
    found = ptq_cli.compare_models([folder / "old.json", other, folder / "third"], metric="sqnr_db").found
    assert document["metric"] == found.metric == "sqnr_db"
    assert [model["value"] for model in document["models"]] == [model.value for model in found.models]


def test_the_page_of_two_reports_has_their_layers(folder: Path, other: Path, ptq: Any) -> None:
    assert ptq("report old.json ptq-run --page two.html --metric sqnr_db").status == 0
    text = (folder / "two.html").read_text(encoding="utf-8")
    assert 'id="layer-table"' in text and "2 quantized models by sqnr_db" in text


BAD = table("""
    report nowhere.json ptq-run/report.json      | PTQ-FILE-001
    report ptq-run/report.json model.onnx        | PTQ-REPORT-001
    report ptq-run/report.json                   | PTQ-USAGE-001
    report ptq-run ptq-run ptq-run --metric top2 | PTQ-USAGE-001
    report ptq-run ptq-run --metric top1         | PTQ-USAGE-001
    report ptq-run ptq-run --page ptq-run        | PTQ-FILE-002
""")


@each_case("words, code", BAD)
def test_what_is_no_report_is_refused(refuse: Any, words: str, code: str) -> None:
    refuse(words, code)
