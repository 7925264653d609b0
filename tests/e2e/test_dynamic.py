"""Activations become integers at each run: without calibration data, and beside layers of other modes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.e2e.conftest import operators
from tests.each_case import each_case, table
from tests.unit.plan.graphs import build, serialized

INPUTS, HIDDEN, CLASSES = 48, 64, 40


NETWORK = f"""(float[n,{INPUTS},6] x) => (float[n,{CLASSES}] scores)
    <float[{INPUTS},{INPUTS},3] k, float[{INPUTS},{HIDDEN}] u, float[{HIDDEN},{HIDDEN}] d, float[{HIDDEN}] b,
     float[{HIDDEN},{CLASSES}] o> {{
    [conv] places = Conv<pads=[1, 1]>(x, k) [pool] mean = GlobalAveragePool(places)
    [flat] flat = Flatten(mean) [up] wide = MatMul(flat, u) [relu] active = Relu(wide)
    [down] narrow = Gemm<transB=1>(active, d, b) [head] scores = MatMul(narrow, o) }}"""


@pytest.fixture
def network(tmp_path, monkeypatch):
    """A Conv over places, a MatMul, a Gemm with a turned weight and a MatMul, with data for an evaluation."""
    (tmp_path / "model.onnx").write_bytes(serialized(build(NETWORK, opset=17)))
    x = np.random.default_rng(0).standard_normal((32, INPUTS, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_preset_needs_no_data_and_leaves_convolutions_in_float(network: Path, ptq: Any) -> None:
    found = ptq("quantize model.onnx --preset dynamic_int8 --set evaluation.latency=false --json")
    assert found.status == 0, found.err
    export = json.loads(found.out)["export"]
    assert (export["kernels"]["integer"]["MatMul"], export["kernels"]["floating"]["Conv"]) == (3, 1)
    model = network / "ptq-run/model_dynamic.onnx"
    assert operators(model).count("MatMulInteger") == 3
    assert {item.domain for item in onnx.load(model).opset_import} == {""}
    x = np.load(network / "data.npz")["x"]
    expected, got = (
        onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0]
        for path in (network / "model.onnx", model)
    )
    assert 0 < np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_every_command_takes_such_a_run(network: Path, ptq: Any) -> None:
    found = ptq(
        "quantize model.onnx --preset dynamic_int8 --eval-data data.npz --set evaluation.latency=false"
    )
    assert (found.status, "ranges of activations found at each run" in found.out) == (0, True)
    layers = {
        item["name"]: item for item in json.loads((network / "ptq-run/report.json").read_text())["layers"]
    }
    assert {name for name, layer in layers.items() if layer["integer"]} == {"up", "down", "head"}
    assert "three to five times" in layers["conv"]["reason"]
    verified = ptq("verify --random-inputs --json")
    operator = {item["name"]: item for item in json.loads(verified.out)["operators"]}
    assert verified.status == 0
    assert [operator[name]["op"] for name in ("up", "down", "head")] == ["MatMul", "Gemm", "MatMul"]
    assert {operator[name]["kernel"] for name in ("up", "down", "head")} == {"MatMulInteger"}
    assert not any("dynamic_" in name for name in operator)
    shown = ptq("inspect ptq-run/model_dynamic.onnx --json")
    inspected = {item["name"]: item for item in json.loads(shown.out)["layers"]}
    assert inspected["down"]["multiply_accumulates"] == HIDDEN * HIDDEN
    assert inspected["down"]["parameters"] == HIDDEN * HIDDEN + HIDDEN
    analyzed = ptq("analyze --eval-data data.npz --json")
    assert analyzed.status == 0, analyzed.err
    found = json.loads(analyzed.out)
    shares, rows = found["shares"], {item["name"]: item for item in found["layers"]}
    assert shares["activations"] is None and shares["weights"]["sqnr_db"] > shares["both"]["sqnr_db"] > 20
    assert shares["advice"] == [
        "activations become integers at each run, which cannot be done with float weights"
    ]
    assert all(rows[name]["sensitivity"]["sqnr_only_quantized_db"] > 30 for name in ("up", "down", "head"))
    page = (network / "ptq-run/report.html").read_text()
    assert "dynamic uint8" in page


@pytest.mark.parametrize("granularity", ["row", "tensor"])
def test_static_dynamic_weights_alone_and_float_in_one_model(network, ptq, granularity):
    overrides = f"--set override=down:activations.mode=dynamic,activations.granularity={granularity}"
    overrides += " --set override=head:activations.mode=float --exclude up --prefer size"
    found = ptq(
        f"quantize model.onnx --data data.npz --recover none {overrides} --set evaluation.latency=false"
    )
    assert found.status == 0, found.err
    made = operators(network / "ptq-run/model_int8.onnx")
    assert made.count("MatMulInteger") == 1
    assert made.count("DynamicQuantizeLinear") == (granularity == "tensor")
    verified = json.loads(ptq("verify --json").out)
    operator = {item["name"]: item["placement"] for item in verified["operators"]}
    assert {name: operator[name] for name in ("conv", "up", "down", "head")} == {
        "conv": "integer",
        "up": "float",
        "down": "integer",
        "head": "float",
    }


def test_a_convolution_is_dynamic_where_an_override_asks_for_it(network: Path, ptq: Any) -> None:
    found = ptq(
        "quantize model.onnx --preset dynamic_int8 --set override=conv:activations.mode=dynamic "
        "--set evaluation.latency=false"
    )
    assert found.status == 0, found.err
    assert operators(network / "ptq-run/model_dynamic.onnx").count("ConvInteger") == 1
    verified = json.loads(ptq("verify --random-inputs --json").out)
    assert next(item["kernel"] for item in verified["operators"] if item["name"] == "conv") == "ConvInteger"


@each_case(
    "command, code, message",
    table("""
    --preset dynamic_int8 --set override=:op=MatMul,quantize=false --set override=:op=Gemm,quantize=false \
        | PTQ-PLAN-001 | at each run
    --preset dynamic_int8 --target generic | PTQ-PLAN-001 | choose the target ort-cpu
    --preset dynamic_int8 --set activations.dtype=int8 | PTQ-RECIPE-003 | has no effect
    --preset dynamic_int8 --set activations.granularity=channel | PTQ-RECIPE-004 | known: row, tensor
    --set activations.granularity=row --data data.npz | PTQ-RECIPE-003 | no activations have mode
    --preset dynamic_int8 --set recovery.rungs=round | PTQ-DATA-005 | no calibration data was given
"""),
)
def test_what_makes_no_sense_is_refused(network, ptq, command, code, message):
    found = ptq(f"quantize model.onnx {command}")
    assert (found.status, code in found.err, message in found.err) == (2, True, True), found.err
    assert not (network / "ptq-run").exists()
