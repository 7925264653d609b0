"""Networks of recurrent layers alone, through the commands: nothing is calibrated, and the file is small."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.contracts.ops.case import graph
from tests.unit.plan.graphs import build, serialized

TEXT = graph(
    "float[N,20,64] x",
    "float[2,384,64] w, float[2,384,96] r, float[1,192,192] w2, float[1,192,64] r2, int64[3] s = {0, 0, 192}",
    "t = Transpose<perm=[1, 0, 2]>(x)",
    '[encoder] a = LSTM<hidden_size=96, direction="bidirectional">(t, w, r)',
    "b = Transpose<perm=[0, 2, 1, 3]>(a)",
    "c = Reshape(b, s)",
    "[last] d, e = GRU<hidden_size=64>(c, w2, r2)",
    "y = Transpose<perm=[1, 0, 2]>(e)",
    outputs="float[N,1,64] y",
)


@pytest.fixture
def recurrent(folder: Path) -> Path:
    model = build(TEXT)
    (folder / "rnn.onnx").write_bytes(serialized(model))
    noise = np.random.default_rng(0).standard_normal((16, 20, 64)).astype(np.float32)
    np.savez(folder / "noise.npz", x=noise)
    return folder


def test_they_are_quantized_without_a_calibration(recurrent: Path, ptq: Any) -> None:
    made = ptq("quantize rnn.onnx --data noise.npz --run small")
    assert made.status == 0, made.err
    said = made.out + made.err
    assert "measured no activations: none needs a range" in said and "1 LSTM" in said
    assert "note: 1 layer runs in float with integer weights; ptq inspect says why" in said
    sizes = [(recurrent / f"small/model{kind}.onnx").stat().st_size for kind in ("_int8", ".float")]
    assert sizes[0] / sizes[1] < 0.30
    report = json.loads(ptq("evaluate --run small --eval-data noise.npz --json").out)
    metrics = {item["name"]: item["quantized_value"] for item in report["metrics"]}
    assert metrics["sqnr_db"] > 30.0

    checked = json.loads(ptq("verify --run small --json").out)
    layers = {item["name"]: item for item in checked["operators"]}
    assert checked["verdict"] == "pass" and layers["encoder"]["kernel"] == "DynamicQuantizeLSTM"
    assert layers["last"]["placement"] == "float" and "no integer GRU" in layers["last"]["reason"]
    assert 0.5 < checked["integer_share"] < 1.0

    shown = ptq("inspect small/model_int8.onnx --all").out
    assert "uint8 x int8" in shown and "float x int8" in shown and "layers are quantized" in shown

    found = json.loads(ptq("analyze --run small --eval-data noise.npz --json").out)
    assert "not fused" not in {layer["cause"] for layer in found["layers"]}
    assert {tensor["dtype"] for tensor in found["tensors"]} == {"int8"}


def test_integers_that_an_operator_of_the_runtime_reads_are_not_recovered(recurrent: Path, ptq: Any) -> None:
    made = ptq("quantize rnn.onnx --data noise.npz --set recovery.rungs=round --run more --quiet --json")
    assert made.status == 0, made.err
    (found,) = json.loads(made.out)["export"]["recovery"]["effects"]
    reason = "an operator of the runtime reads its integers, and has scales of its own"
    assert found["refused"]["encoder"] == reason


def test_weights_that_are_products_of_integers_are_not_quantized_again(recurrent, ptq, refuse):
    """Preparation folds such products, and nothing else in the file says that it is quantized."""
    assert (
        ptq(
            "quantize rnn.onnx --data noise.npz --run small --exclude encoder --set run.evaluate=false"
        ).status
        == 0
    )
    kinds = {node.op_type for node in onnx.load("small/model_int8.onnx").graph.node}
    assert {"Cast", "Mul", "GRU"} <= kinds and "DynamicQuantizeLSTM" not in kinds
    said = "the model is already quantized: the weights of GRU 'last' are integers"
    refuse("calibrate small/model_int8.onnx --data noise.npz --run again", "PTQ-PLAN-001", said)
