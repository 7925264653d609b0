"""The page of the metrics: its commands, its recipe and its code run on a small copy of a sample."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ptq_cli.report.metrics.metric_registry import LABEL_METRICS, PAIR_METRICS, REQUESTED_COMPARISONS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

MakeSample = Callable[[str], Path]
RunShell = Callable[..., subprocess.CompletedProcess[str]]


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGE) if found == language]


def test_every_metric_is_described() -> None:
    for name in (*LABEL_METRICS, *REQUESTED_COMPARISONS, *PAIR_METRICS):
        assert f"`{name}`" in PAGE, name


def commands() -> list[str]:
    return [line[2:] for block in blocks("console") for line in block.splitlines()]


def run_all(ptq: RunShell, folder: Path, *lines: str) -> None:
    for line in lines:
        said = ptq(line, folder)
        assert said.returncode == 0, said.stdout


def test_metrics_of_others_run_as_the_page_says(make_sample: MakeSample, ptq: RunShell) -> None:
    folder = make_sample("spoken_digits_transformer")
    (folder / "own.py").write_text(blocks("python")[0], encoding="utf-8")
    (folder / "metrics.toml").write_text(blocks("toml")[0], encoding="utf-8")
    run_all(ptq, folder, "ptq quantize model.onnx --evaluate --recipe metrics.toml")
    report = json.loads((folder / "ptq-run" / "report.json").read_text())
    found = {metric["name"]: metric for metric in report["metrics"]}
    assert not found["second_best"]["higher_is_better"]
    assert found["f1_weighted"]["arguments"] == {"average": '"weighted"'}
    assert {gate["metric"] for gate in report["gates"]} == {"f1_weighted", "second_best"}


@pytest.mark.nightly
def test_the_commands_of_the_page_run(make_sample: MakeSample, ptq: RunShell) -> None:
    folder = make_sample("spoken_digits_transformer")
    run_all(ptq, folder, "ptq quantize model.onnx", commands()[0])
    report = json.loads((folder / "ptq-run" / "report.json").read_text())
    assert [gate["metric"] for gate in report["gates"]] == ["MulticlassF1Score"]


@pytest.mark.nightly
def test_several_models_run_as_the_page_says(make_sample: MakeSample, ptq: RunShell) -> None:
    folder = make_sample("spoken_digits_transformer")
    assert [line.split()[1] for line in commands()[1:]] == ["export", "export", "evaluate"]
    run_all(ptq, folder, "ptq quantize model.pt", *commands()[1:])
    for name in ("max", "mse"):
        values = json.loads((folder / "ptq-run" / name / "report.json").read_text())
        assert values["metrics"][0]["pytorch_value"] is not None
