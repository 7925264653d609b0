"""``ptq evaluate`` with metrics of all kinds, several models, PyTorch, a kill, and what it refuses."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.each_case import each_case, table

F1 = "torchmetrics.classification:MulticlassF1Score"
OWN = """\
import numpy as np
import onnx


def margin(output, labels):
    ordered = np.sort(output, axis=1)
    return ordered[:, -1] - ordered[:, -2]


class Mean:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, output, labels):
        self.sum, self.count = self.sum + float(output.sum()), self.count + output.size

    def compute(self):
        return self.sum / self.count
"""
ENDED_DATA = """\
from pathlib import Path

import numpy as np


def batches():
    arrays = dict(np.load("eval.npz"))
    end = int(Path("end").read_text())
    for index in range(10):
        if index == end:
            raise KeyboardInterrupt
        rows = slice(index * 2, index * 2 + 2)
        yield {"x": arrays["x"][rows], "label": arrays["label"][rows]}
"""


def report_of(folder: Path, run: str = "ptq-run") -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / run / "report.json").read_text())
    return values


def without_times(folder: Path, run: str) -> dict[str, Any]:
    values = report_of(folder, run)
    del values["times"]
    return values


def by_name(report: dict[str, Any]) -> dict[str, Any]:
    return {metric["name"]: metric for metric in report["metrics"]}


def test_metrics_by_name_of_torchmetrics_and_ones_own(folder: Path, ptq: Any) -> None:
    (folder / "own.py").write_text(OWN)
    (folder / "ptq.toml").write_text(
        f'[[metric]]\nname = "micro"\nmetric = "{F1}"\narguments = {{ average = "micro" }}\n'
    )
    named = ("top1", F1, "own.py:margin", "own.py:Mean", "class_accuracy")
    words = "evaluate" + "".join(f" --metric {name}" for name in named)
    outcome = ptq(words + " --model ptq-run/model_int8.onnx --eval-data eval.npz --recipe ptq.toml")
    assert outcome.status == 0, outcome
    found = by_name(report_of(folder))
    assert list(found)[:5] == ["top1", "margin", "Mean", "class_accuracy", "micro"]
    assert found["micro"]["quantized_value"] == pytest.approx(found["top1"]["quantized_value"])
    assert (found["micro"]["computed_by"], found["micro"]["arguments"]) == (F1, {"average": '"micro"'})
    assert found["margin"]["computed_by"] == "own.py:margin"
    assert found["margin"]["drop_interval"]["method"] == "bootstrap"
    assert "does not tell what each sample contributes" in found["Mean"]["no_interval"]
    assert [item["label"] for item in found["class_accuracy"]["by_class"]] == [0, 1, 2, 3, 4]
    assert "note: the drop of Mean has no interval" in outcome.out
    assert "no checkpoints are written: Mean cannot continue from one" in outcome.err


def test_several_models_have_a_column_and_a_report_each(folder: Path, ptq: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert ptq("export --onnx --amax max -o max.onnx").status == 0
    shutil.copy("ptq-run/model_int8.onnx", "auto.onnx")
    assert ptq("evaluate auto.onnx --max-drop top1=0.5").status == 0
    alone = without_times(folder, "ptq-run")
    outcome = ptq("evaluate --model auto.onnx --model max.onnx --max-drop top1=0.5")
    assert outcome.status == 0, outcome
    assert re.search(r"against float +auto.onnx +max.onnx", outcome.out)
    assert without_times(folder, "ptq-run/auto") == alone
    assert report_of(folder, "ptq-run/max")["model"]["quantized_model"]["name"] == "max.onnx"
    printed = json.loads(ptq("evaluate --model auto.onnx --model max.onnx --json").out)
    assert [item["model"]["quantized_model"]["name"] for item in printed["reports"]] == [
        "auto.onnx",
        "max.onnx",
    ]
    missed = ptq("evaluate --model auto.onnx --model max.onnx --min sqnr_db=1000")
    assert missed.status == 3


@pytest.mark.parametrize("death", ["Ctrl-C", pytest.param("SIGKILL", marks=pytest.mark.nightly)])
def test_an_evaluation_that_was_ended_goes_on_to_the_same_bytes(folder, ptq, real_ptq, death) -> None:
    is_killed = death == "SIGKILL"
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    (folder / "data.py").write_text(
        ENDED_DATA.replace("raise KeyboardInterrupt", kill) if is_killed else ENDED_DATA
    )
    (folder / "end").write_text("-1")
    words = "evaluate --eval-data data.py:batches --set data.batch_size=2 --set runtime.checkpoint_every=0 "
    words += f"--metric f1 --metric {F1}"
    assert ptq(words).status == 0
    whole = without_times(folder, "ptq-run")
    (folder / "end").write_text("6")
    status = real_ptq(*words.split(), cwd=folder).returncode if is_killed else ptq(words).status
    assert status == (-signal.SIGKILL if is_killed else 130)
    assert (folder / "ptq-run" / "evaluation.partial.safetensors").is_file()
    (folder / "end").write_text("-1")
    outcome = ptq(words)
    assert "note: continuing an earlier evaluation after " in outcome.err
    assert without_times(folder, "ptq-run") == whole
    assert not (folder / "ptq-run" / "evaluation.partial.safetensors").exists()


@pytest.mark.parametrize("odd", ["damaged", "of another batch size", "restart"])
def test_another_checkpoint_is_passed_over(folder: Path, ptq: Any, odd: str) -> None:
    (folder / "data.py").write_text(ENDED_DATA)
    words = "evaluate --eval-data data.py:batches --set runtime.checkpoint_every=0 --set data.batch_size="
    (folder / "end").write_text("6")
    assert ptq(f"{words}2").status == 130
    checkpoint = folder / "ptq-run" / "evaluation.partial.safetensors"
    content = checkpoint.read_bytes()
    (folder / "end").write_text("-1")
    if odd == "damaged":
        checkpoint.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    outcome = ptq(f"{words}{4 if 'size' in odd else 2}{' --restart' if odd == 'restart' else ''}")
    said = {
        "damaged": "is damaged: its checksum is wrong",
        "of another batch size": "the batch size changed since",
        "restart": "",
    }[odd]
    assert outcome.status == 0
    assert ("starting again" in outcome.err) == bool(said)
    assert said in outcome.err
    assert report_of(folder)["evaluation"]["samples"] == 20


@each_case(
    "words, code, says, hint",
    table("""
    --metric top1[logits] | PTQ-METRIC-001 | the model has no output 'logits' | scores
    --max-latency-ratio 0 | PTQ-GATE-001 | --max-latency-ratio 0 is not a valid ratio | 0.8
    --model ptq-run/model_int8.onnx --model copy/model_int8.onnx | PTQ-USAGE-001 | 'model_int8' | name
"""),
)
def test_what_cannot_be_measured_is_refused(folder, refuse, words, code, says, hint):
    (folder / "own.py").write_text(OWN)
    (folder / "copy").mkdir(exist_ok=True)
    shutil.copy("ptq-run/model_int8.onnx", "copy/model_int8.onnx")
    refuse(f"evaluate {words}", code, says, hint=hint or None)


@each_case(
    "words, code, says, hint",
    table("""
    --max-drop top1=0.1 | PTQ-METRIC-001 | 'conv' has 4 axes | write 'top1[scores]'
    --min sqnr_db[conv]=20 | PTQ-GATE-001 | 'sqnr_db[conv]', which is not measured | write sqnr_db:
    --min sqnr_db[nope]=20 | PTQ-GATE-001 | 'sqnr_db[nope]', which is not | sqnr_db[scores]
"""),
)
def test_a_metric_on_the_wrong_output_is_refused_before_calibration(folder, refuse, words, code, says, hint):
    model = onnx.load(folder / "model.onnx")
    shape = ["batch", 8, 6, 6]
    model.graph.output.insert(0, onnx.helper.make_tensor_value_info("conv", onnx.TensorProto.FLOAT, shape))
    onnx.save(model, folder / "two.onnx")
    # A calibration would fail: its data are NaN.
    np.savez(folder / "calib.npz", x=np.full((4, 3, 8, 8), np.nan, np.float32))
    command = f"quantize two.onnx --data calib.npz --eval-data eval.npz --metric top1[scores] {words}"
    refuse(command.replace("--metric top1[scores] --max", "--max"), code, says, hint=hint)


def test_a_limit_on_the_latency(folder: Path, ptq: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("ptq_cli.evaluation.latency.LIMITED_SECONDS", 0.2)
    assert ptq("evaluate --max-latency-ratio 1000 --set evaluation.latency=true").status == 0
    report = report_of(folder)
    latency, (gate,) = report["times"]["latency"], report["gates"]
    assert (gate["kind"], gate["limit"], gate["passed"]) == ("max_latency_ratio", 1000.0, True)
    assert gate["value"] == latency["ratio"] > 0
    assert ptq("gate ptq-run/report.json --max-latency-ratio 0.000001").status == 3
    assert ptq("evaluate").status == 0
    assert "the report has no latency" in ptq("gate ptq-run/report.json --max-latency-ratio 1").err
    assert ("limits the latency, and 'evaluation.latency' is false") in ptq(
        "evaluate --max-latency-ratio 1"
    ).err


def test_a_file_larger_than_the_float_one_is_told_everywhere(folder: Path, ptq: Any) -> None:
    found = "the quantized file is larger than the float one: "
    exported = ptq("export --onnx")
    assert f"warning: {found}" in exported.err
    assert "hint: ptq bench shows whether it is faster" in exported.err
    evaluated = ptq("evaluate")
    assert f"warning: {found}" in evaluated.err
    (warning,) = report_of(folder, "ptq-run")["warnings"]
    assert (warning["code"], warning["message"].startswith(found)) == ("larger_than_float", True)
    for name in ("report.md", "report.html"):
        assert found.removesuffix(": ") in (folder / "ptq-run" / name).read_text(encoding="utf-8")


def test_quantize_evaluates_as_many_samples_as_it_is_told(folder: Path, ptq: Any) -> None:
    """As ``evaluate`` does; the option alone asks for the evaluation."""
    (folder / "ptq.toml").write_text('[evaluation]\ndata = "eval.npz"\n')
    assert ptq("quantize model.onnx --data calib.npz --eval-samples 8").status == 0
    assert json.loads(Path("ptq-run/report.json").read_text())["evaluation"]["samples"] == 8
