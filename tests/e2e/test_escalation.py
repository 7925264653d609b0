"""A model whose worst output has less than 20 dB is improved by default, and another one stays as it is."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.contracts.ops.case import graph
from tests.unit.plan.graphs import build, serialized

TEXT = graph(
    "float[N,20,64] x",
    "float[1,384,64] w, float[1,384,96] r, float[1,384,96] w2, float[1,384,96] r2, int64[1] s = {1}",
    "t = Transpose<perm=[1, 0, 2]>(x)",
    "[first] a = LSTM<hidden_size=96>(t, w, r)",
    "b = Squeeze(a, s)",
    "[second] c, d = LSTM<hidden_size=96>(b, w2, r2)",
    "y = Squeeze(d, z)",
    outputs="float[N,96] y",
).replace("int64[1] s = {1}", "int64[1] s = {1}, int64[1] z = {0}")


@pytest.fixture
def speech(folder: Path) -> Path:
    """Two LSTMs, samples whose few large values leave the small ones no step, and samples of one size."""
    (folder / "rnn.onnx").write_bytes(serialized(build(TEXT)))
    random = np.random.default_rng(0)
    powers = np.exp(2.5 * random.standard_normal((32, 20, 64))).astype(np.float32)
    np.savez(folder / "powers.npz", x=powers)
    np.savez(folder / "noise.npz", x=random.standard_normal((16, 20, 64)).astype(np.float32))
    return folder


def worst_output(ptq: Any, run: str, data: str) -> float:
    report = json.loads(ptq(f"evaluate --run {run} --eval-data {data} --json").out)
    return next(item["quantized_value"] for item in report["metrics"] if item["name"] == "sqnr_db")


def lstm_operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node if "LSTM" in node.op_type]


def test_an_lstm_whose_integers_lose_a_signal_gets_another_form(speech: Path, ptq: Any) -> None:
    plain = ptq("quantize rnn.onnx --data powers.npz --recover none --run plain")
    made = ptq("quantize rnn.onnx --data powers.npz --run better")
    assert plain.status == made.status == 0, made.err
    assert re.search(r"below 20 dB: improving it, (some|about \d+) .*; --recover none skips this", made.err)
    assert "recurrent layers: " in made.err and "below 20 dB" not in plain.err.partition("warning")[0]
    assert worst_output(ptq, "plain", "powers.npz") < 20.0 <= worst_output(ptq, "better", "powers.npz")
    assert lstm_operators(speech / "plain/model_int8.onnx") == ["DynamicQuantizeLSTM"] * 2
    assert "LSTM" in lstm_operators(speech / "better/model_int8.onnx")
    layers = json.loads((speech / "better/report.json").read_text())["layers"]
    reasons = {layer["name"]: layer["reason"] for layer in layers if layer["op"] == "LSTM"}
    assert any("integers cost the outputs more than they save time" in why for why in reasons.values()), (
        reasons
    )

    # An export reads the data again, and makes the same file; without them it makes what it can.
    assert ptq("export --run better --output again.onnx").status == 0
    assert (speech / "again.onnx").read_bytes() == (speech / "better/model_int8.onnx").read_bytes()
    (speech / "powers.npz").unlink()
    without = ptq("export --run better --output without.onnx")
    assert without.status == 0
    assert "note: the outputs were not compared with the float model's: " in without.err
    assert lstm_operators(speech / "without.onnx") == ["DynamicQuantizeLSTM"] * 2


def test_a_model_that_is_good_enough_stays_as_it_is(speech: Path, ptq: Any) -> None:
    for name, words in (("plain", "--recover none"), ("default", "")):
        made = ptq(f"quantize rnn.onnx --data noise.npz --run {name} {words}")
        assert made.status == 0 and "improving" not in made.err
    plain, default = (onnx.load(speech / name / "model_int8.onnx").graph for name in ("plain", "default"))
    assert plain.SerializeToString(deterministic=True) == default.SerializeToString(deterministic=True)


def test_an_lstm_with_activations_in_float_multiplies_its_integers_as_floats(speech: Path, ptq: Any) -> None:
    (speech / "ptq.toml").write_text('[[override]]\nop = "LSTM"\nactivations = { mode = "float" }\n')
    assert ptq("quantize rnn.onnx --data noise.npz --run floats").status == 0
    path = speech / "floats/model_int8.onnx"
    assert lstm_operators(path) == ["LSTM"] * 2
    assert path.stat().st_size < 0.4 * (speech / "floats/model.float.onnx").stat().st_size
