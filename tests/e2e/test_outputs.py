"""Outputs that are not compared: constants, and those whose size depends on the data, such as boxes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ptq_cli
from ptq_cli.core.errors import MetricError
from tests.graphs import parsed

KEPT = """
<ir_version: 10, opset_import: ["" : 20]>
net (float[batch, 3, 8, 8] x) => (float[kept] values, float[batch, 4, 6, 6] features)
<float[1] least = {1.0}, int64[1] flat = {-1}>
{
  features = Conv(x, weight)
  every = Reshape(features, flat)
  is_kept = Greater(every, least)
  values = Compress(every, is_kept)
}
"""


def save_model(name: str) -> None:
    weight = np.random.default_rng(3).normal(size=(4, 3, 3, 3)).astype(np.float32)
    onnx.save(parsed(KEPT, {"weight": weight}), name)
    for data in ("calib.npz", "eval.npz"):
        np.savez(data, x=np.load(data)["x"])


def test_what_cannot_be_compared_is_left_out_and_said(folder: Path, ptq: Any) -> None:
    save_model("kept.onnx")
    words = "quantize kept.onnx --data calib.npz --eval-data eval.npz --run kept"
    outcome = ptq(f"{words} --metric sqnr_db[features] --set data.batch_size=4")
    assert outcome.status == 0, outcome.err
    assert "output 'values' is not compared, because its size depends on the data: it has" in outcome.err
    report = json.loads(Path("kept/report.json").read_text())
    assert {item["output"] for item in report["metrics"]} == {"features"}
    assert [item["code"] for item in report["warnings"]].count("output_left_out") == 1
    assert ptq("analyze --run kept --eval-data eval.npz").status == 0
    for part in (1, 2):
        assert ptq(f"evaluate --run kept --shard {part}/2 --set data.batch_size=4").status == 0
    assert ptq("merge kept --run kept").status == 0
    again = json.loads(Path("kept/report.json").read_text())
    assert (again["metrics"], again["warnings"]) == (report["metrics"], report["warnings"])


def test_a_comparison_that_was_asked_for_is_refused(folder: Path, ptq: Any) -> None:
    save_model("kept.onnx")
    words = "quantize kept.onnx --data calib.npz --eval-data eval.npz --run kept"
    outcome = ptq(f"{words} --min sqnr_db=10")
    assert (outcome.status, outcome.err.splitlines()[-2][:19]) == (2, "error PTQ-GATE-001:")
    assert "sqnr_db[features]" in outcome.err


def quantized(folder: Path, outputs: list[str]) -> Path:
    """MatMul; its result and its weight are outputs."""
    random = np.random.default_rng(0)
    told = ", ".join({"y": "float[N,4] y", "w": "float[8,4] w"}[name] for name in outputs)
    weight = {"w": random.standard_normal((8, 4)).astype(np.float32)}
    onnx.save(parsed(f"(float[N,8] x) => ({told}) {{ y = MatMul(x, w) }}", weight), folder / "model.onnx")
    np.savez(folder / "data.npz", x=random.standard_normal((32, 8)).astype(np.float32))
    ptq_cli.quantize(
        folder / "model.onnx", run=folder / "run", data=str(folder / "data.npz"), threads=1, latency=False
    )
    return folder / "run"


def test_it_is_passed_through(tmp_path: Path):
    run = quantized(tmp_path, ["y", "w"])
    result = ptq_cli.analyze(run=run, eval_data=str(tmp_path / "data.npz"), threads=1)
    assert [layer.op for layer in result.analysis.layers] == ["MatMul"]


def test_nothing_is_judged_by_it(tmp_path: Path):
    run = quantized(tmp_path, ["w", "y"])
    with pytest.raises(MetricError, match="the output 'w' is a constant"):
        ptq_cli.analyze(run=run, eval_data=str(tmp_path / "data.npz"), threads=1)
