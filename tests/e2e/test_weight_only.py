"""Weights alone are quantized: no calibration data, and what every command makes of such a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ptq_cli.models.files import storing
from ptq_cli.recover import block_layer
from tests.each_case import each_case, table
from tests.unit.plan.graphs import build, serialized

INPUTS, HIDDEN, CLASSES = 64, 96, 5


DENSE = f"""(float[n,{INPUTS}] x) => (float[n,{CLASSES}] scores)
    <float[{INPUTS},{HIDDEN}] w, float[{HIDDEN},{CLASSES}] v> {{
    [first] hidden = MatMul(x, w) [relu] active = Relu(hidden) [head] scores = MatMul(active, v) }}"""


@pytest.fixture
def dense(tmp_path, monkeypatch):
    """Two MatMuls with a Relu between them, in a folder of their own, with data that nobody has to read."""
    (tmp_path / "model.onnx").write_bytes(serialized(build(DENSE, opset=17)))
    x = np.random.default_rng(0).standard_normal((32, INPUTS)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outputs(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_weights_alone_need_no_data(dense: Path, ptq: Any) -> None:
    found = ptq("quantize model.onnx --set activations.mode=float")
    assert (found.status, "no data were given" in found.out) == (0, True)
    assert "quantized the weights of 2 of 3 layers" in found.out
    assert "warning" not in found.err
    model = onnx.load(dense / "ptq-run/model_q8.onnx")
    assert [node.op_type for node in model.graph.node] == [
        "DequantizeLinear",
        "MatMul",
        "Relu",
        "DequantizeLinear",
        "MatMul",
    ]
    x = np.load(dense / "data.npz")["x"]
    expected = outputs(dense / "model.onnx", x)
    assert (outputs(dense / "ptq-run/model_q8.onnx", x) - expected).std() < 0.02 * expected.std()


def test_every_command_takes_such_a_run(dense: Path, ptq: Any) -> None:
    assert ptq("calibrate model.onnx --set activations.mode=float").status == 0
    first = (dense / "ptq-run/calibration.safetensors").read_bytes()
    assert ptq("export").status == 0
    assert ptq("evaluate --eval-data data.npz --set evaluation.latency=false").status == 0
    report = json.loads((dense / "ptq-run/report.json").read_text())
    assert {layer["integer"] for layer in report["layers"]} == {False}
    for command in ("verify", "inspect ptq-run/model_q8.onnx", "analyze --no-sensitivity", "report"):
        outcome = ptq(command)
        assert outcome.status == 0, (command, outcome.err)
    shares = json.loads((dense / "ptq-run/analysis.json").read_text())["shares"]
    assert (shares["activations"], shares["weights"]["metric"]) == (None, None)
    assert shares["weights"]["sqnr_db"] > shares["both"]["sqnr_db"] > 30
    assert shares["advice"][0].startswith("the file quantizes no activation")
    assert shares["advice"][0] in (dense / "ptq-run/report.html").read_text()
    assert (dense / "ptq-run/calibration.safetensors").read_bytes() == first


@each_case(
    "command, message",
    table("""
    quantize model.onnx --set activations.mode=float --recover all | no calibration data was given
    calibrate model.onnx --set activations.mode=float --shard 1/2 | no calibration data was given
    quantize model.onnx | no calibration data was given
    quantize model.onnx --set activations.mode=float --set override=head:activations.mode=static \
        | no calibration data was given
"""),
)
def test_what_needs_data_says_so(dense: Path, ptq: Any, command: str, message: str) -> None:
    found = ptq(command)
    assert (found.status, message in found.err, "hint:" in found.err) == (2, True, True)
    assert not (dense / "ptq-run").exists()


def test_both_accuracy_levels_of_blocks_are_measured(dense: Path, ptq: Any) -> None:
    found = ptq("quantize model.onnx --preset w4_block32 --eval-data data.npz --set evaluation.latency=false")
    assert (found.status, "measured at accuracy level 4 of MatMulNBits; at level 0:" in found.out) == (
        0,
        True,
    )
    assert "2 MatMulNBits" in found.out
    levels = json.loads((dense / "ptq-run/report.json").read_text())["accuracy_levels"]
    assert [(item["level"], item["reported"]) for item in levels] == [(4, True), (0, False)]
    assert levels[0]["values"]["sqnr_db"] != levels[1]["values"]["sqnr_db"]
    benched = json.loads(ptq("bench --runs 2 --threads 1 --json").out)
    assert [item["latency"]["runtime"] for item in benched["scenarios"]] == [
        "ONNX Runtime at accuracy level 4",
        "ONNX Runtime at accuracy level 0",
    ]
    assert ptq("bench --runs 2 --accuracy-level 5").status == 2


@pytest.mark.parametrize(
    ("zeros", "layers", "share"), [("", "2 layers", 0.9), ("--set weights.symmetric=false", "1 layer", 0.97)]
)
def test_with_data_weights_alone_are_chosen_by_what_layers_read(
    dense: Path, ptq: Any, zeros: str, layers: str, share: float
) -> None:
    command = (
        f"quantize model.onnx --preset w4_block32 --data data.npz --set evaluation.latency=false {zeros}"
    )
    found = ptq(command)
    assert found.status == 0
    assert f"recovered {layers} (round)" in found.out
    assert "measured no activations: none needs a range\n" in found.out
    assert 'rungs = [\n    "bits",\n    "round",\n]' in (dense / "ptq-run/recipe.toml").read_text()
    better = (dense / "ptq-run/model_q4.onnx").read_bytes()
    assert ptq(f"export --recover none {zeros} -o nearest.onnx").status == 0
    expected, nearest = (
        outputs(dense / name, np.load("data.npz")["x"]) for name in ("model.onnx", "nearest.onnx")
    )
    (dense / "better.onnx").write_bytes(better)
    recovered = outputs(dense / "better.onnx", np.load("data.npz")["x"])
    assert (recovered - expected).std() < share * (nearest - expected).std()


def test_constants_that_are_mapped_change_no_byte_and_channels_in_parts_no_error(
    dense: Path, ptq: Any, monkeypatch
) -> None:
    command = "quantize model.onnx --preset w4_block32 --data data.npz --set evaluation.latency=false --json"
    held = json.loads(ptq(command).out)["export"]["recovery"]["effects"][0]["after"]
    whole = (dense / "ptq-run/model_q4.onnx").read_bytes()
    monkeypatch.setattr(storing, "SMALLEST_MAPPED", 0)
    assert ptq(f"{command} --run mapped").status == 0
    assert (dense / "mapped/model_q4.onnx").read_bytes() == whole
    assert not list(dense.rglob("*.partial"))
    monkeypatch.setattr(block_layer, "STATE_CHANNELS_AT_ONCE", 32)
    in_parts = json.loads(ptq(f"{command} --run parts").out)["export"]["recovery"]["effects"][0]["after"]
    assert in_parts == pytest.approx(held, abs=0.1)


def test_a_calibration_for_weights_alone_has_no_ranges(dense: Path, ptq: Any) -> None:
    assert ptq(f"calibrate {dense}/model.onnx --preset w4_block32 --data {dense}/data.npz").status == 0
    found = ptq("export --reset --set activations.mode=static")
    assert (found.status, "this calibration was for weights alone" in found.err) == (2, True)


def test_several_matrices_have_a_scale_for_each_matrix_and_column(dense: Path, ptq: Any) -> None:
    random = np.random.default_rng(1)
    weight = random.normal(size=(3, 8, 6)) * np.geomspace(1, 1e4, 18).reshape(3, 1, 6)
    model = build(
        "(float[n,3,5,8] x) => (float[n,3,5,6] y) <float[3,8,6] w> { y = MatMul(x, w) }",
        constants={"w": weight.astype(np.float32)},
    )
    (dense / "model.onnx").write_bytes(serialized(model))
    assert ptq("quantize model.onnx --set activations.mode=float --set export.prefer=size").status == 0
    x = random.normal(size=(2, 3, 5, 8)).astype(np.float32)
    exact, found = x @ weight, outputs(dense / "ptq-run/model_q8.onnx", x)
    signal, noise = (exact**2).sum((0, 2)), ((exact - found) ** 2).sum((0, 2))
    assert (10 * np.log10(signal / noise)).min() > 35
