"""A model whose worst output has less than 20 dB is improved by default, and another one stays as it is."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
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


CHAIN = """(float[N,64] x) => (float[N,64] y)
    <float[64,64] a, float[64,64] b, float[64,64] c, float[64,64] d, float[64,64] e, float[64,64] f> {
    p = MatMul(x, a) q = Relu(p) [loud] r = MatMul(q, b) s = MatMul(r, c)
    t = MatMul(s, d) u = Relu(t) v = MatMul(u, e) y = MatMul(v, f) }"""
FEW_BITS = "quantize chain.onnx --data x.npz --preset w4_block32 --set accuracy.goal_db=24"


@pytest.fixture
def chain(folder: Path) -> Path:
    """Layers in a row, one with large weights of next to nothing, which leave the others few steps."""
    model, random = build(CHAIN), np.random.default_rng(0)
    for name, value in model.graph.initializers.items():
        weight = random.standard_normal((64, 64)).astype(np.float32) / 8
        if name == "a":
            weight[:, ::32] = 1e-4
        elif name == "b":
            weight[::32] = 0.8
        value.const_value = ir.tensor(weight, name=name)
    (folder / "chain.onnx").write_bytes(serialized(model))
    np.savez(folder / "x.npz", x=random.standard_normal((512, 64)).astype(np.float32))
    return folder


def stored_as(path: Path) -> dict[str, str]:
    """Types of the integers of each weight, by its name."""
    constants = onnx.load(path).graph.initializer
    kinds = {item.name: onnx.TensorProto.DataType.Name(item.data_type) for item in constants}
    return {name[0]: kind for name, kind in kinds.items() if name.endswith(".quantized")}


def test_weights_that_cost_the_most_get_more_bits(chain: Path, ptq: Any) -> None:
    plain = ptq(f"{FEW_BITS} --set recovery.rungs=round --run plain")
    made = ptq(f"{FEW_BITS} --run better")
    assert plain.status == made.status == 0, made.err
    assert re.search(r"measuring what each of 6 costs takes .*; --recover none skips this", made.err)
    assert re.search(
        r"chose zero points for blocks and 8 bits for 1 layer \(loud\) \(bits\): worst", made.out
    )
    files = [chain / run / "model_q4.onnx" for run in ("plain", "better")]
    assert set(stored_as(files[0]).values()) == {"INT4"}
    assert stored_as(files[1]) == {**dict.fromkeys("acdef", "UINT4"), "b": "UINT8"}
    assert files[1].stat().st_size < files[0].stat().st_size + 0.25 * 6 * 64 * 64 / 2 + 6 * 64 + 1000
    assert worst_output(ptq, "plain", "x.npz") + 2.0 < worst_output(ptq, "better", "x.npz")
    assert json.loads(files[1].with_name("model_q4.intoto.json").read_text())["predicate"]["by_runs"] == [
        "bits",
        "round",
    ]

    assert ptq("export --run better --output again.onnx").status == 0
    assert (chain / "again.onnx").read_bytes() == files[1].read_bytes()


def test_bits_that_a_recipe_pins_and_outputs_that_are_good_enough_stay(chain: Path, ptq: Any) -> None:
    pinned = "[[override]]\nmatch = 'loud'\nweights = { bits = 4, symmetric = true }\n"
    (chain / "ptq.toml").write_text(pinned)
    assert ptq(f"{FEW_BITS} --run pinned").status == 0
    found = stored_as(chain / "pinned/model_q4.onnx")
    assert found["b"] == "INT4" and "UINT4" in found.values()
    (chain / "ptq.toml").unlink()
    outcome = ptq(f"{FEW_BITS} --set accuracy.goal_db=9 --run enough")
    assert outcome.status == 0 and "measuring" not in outcome.err
    assert ptq(f"{FEW_BITS} --set recovery.rungs=round --set accuracy.goal_db=9 --run plain").status == 0
    graphs = [onnx.load(chain / run / "model_q4.onnx").graph for run in ("enough", "plain")]
    assert graphs[0].SerializeToString(deterministic=True) == graphs[1].SerializeToString(deterministic=True)
