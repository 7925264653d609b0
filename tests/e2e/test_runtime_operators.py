"""``quantization.runtime_operators=true``: what the file says, and that the commands behind it know it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq_cli.plan.refusals import QUICKER_SILU
from tests.e2e.conftest import operators
from tests.unit.plan.graphs import build, serialized

GRAPH = """(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[4,16,1,1] v> {
    c = Conv(x, w) s = Sigmoid(c) m = Mul(c, s) y = Conv(m, v) }"""


@pytest.fixture
def silu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("silu.onnx").write_bytes(serialized(build(GRAPH)))
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32))
    return tmp_path


def test_every_command_knows_the_operator(silu: Path, ptq: Any) -> None:
    words = (
        "quantize silu.onnx --data x.npz --eval-data x.npz --set export.prefer=size "
        "--set quantization.runtime_operators=true"
    )
    assert ptq(f"{words} --json").status == 0
    assert "QuickGelu" in operators("ptq-run/model_int8.onnx")
    report = json.loads(Path("ptq-run/report.json").read_text())
    layers = {layer["op"]: layer for layer in report["layers"]}
    assert (layers["Conv"]["integer"], layers["Mul"]["integer"]) == (True, False)
    assert "QuickGelu" in layers["Mul"]["reason"]
    for command in ("verify", "analyze --eval-data x.npz", "report", "evaluate --eval-data x.npz"):
        outcome = ptq(command)
        assert outcome.status == 0, outcome
    assert ptq("verify").out.count("QuickGelu") >= 1
    shown = json.loads(
        ptq("inspect silu.onnx --set export.prefer=size --set quantization.runtime_operators=true --json").out
    )
    assert {layer["reason"] for layer in shown["layers"] if layer["op"] in ("Sigmoid", "Mul")} == {
        QUICKER_SILU
    }


def test_a_calibration_serves_both_and_evaluate_asks_the_file(silu: Path, ptq: Any) -> None:
    assert ptq("calibrate silu.onnx --data x.npz").status == 0
    assert (
        ptq("export --set export.prefer=size --set quantization.runtime_operators=true -o own.onnx").status
        == 0
    )
    assert ptq("export --set export.prefer=size -o portable.onnx").status == 0
    assert "QuickGelu" in operators("own.onnx") and "Sigmoid" in operators("portable.onnx")
    for name, integer in (("own", False), ("portable", True)):
        outcome = ptq(f"evaluate {name}.onnx --eval-data x.npz --json")
        [product] = [layer for layer in json.loads(outcome.out)["layers"] if layer["op"] == "Mul"]
        assert product["integer"] == integer


def test_a_target_of_ones_own_may_allow_them(silu: Path, ptq: Any) -> None:
    Path("own.toml").write_text(
        'name = "own"\ndescription = "our own"\nextends = "ort-cpu"\nruntime_operators = true\n'
    )
    words = "quantize silu.onnx --data x.npz --set export.prefer=size --target ./own.toml"
    assert ptq(f"{words} -o own.onnx").status == 0 and "QuickGelu" in operators("own.onnx")
    assert ptq("verify own.onnx --target ./own.toml").status == 0
    assert ptq(f"{words} --set quantization.runtime_operators=false -o portable.onnx").status == 0
    assert "QuickGelu" not in operators("portable.onnx")


def test_a_target_that_onnx_runtime_does_not_run_refuses_them(refuse: Any) -> None:
    refuse(
        "export --target tensorrt --set quantization.runtime_operators=true",
        "PTQ-RECIPE-003",
        "ONNX Runtime does not run the target 'tensorrt'",
        hint="leave 'quantization.runtime_operators' out",
    )
