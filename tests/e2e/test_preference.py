"""Where nobody says what is preferred, a file has the goal, and is no slower and no larger than float."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ptq_cli.pipeline import decide_model, run_export
from ptq_cli.pipeline.trial_models import decides_placement
from tests.e2e.conftest import Ptq
from tests.e2e.test_escalation import TEXT as RECURRENT
from tests.unit.plan.graphs import build, serialized

SLOW = """(float[N,8,24,24] x) => (float[N,8,24,24] y)
<float[8,1,5,5] d, float[64,8,1,1] p, float[8,64,1,1] q> {
  [depthwise] a = Conv<group=8, pads=[2,2,2,2]>(x, d) [swish] b = HardSwish(a)
  [wide] c = Conv(b, p) [relu] e = Relu(c) [narrow] f = Conv(e, q) [sum] y = Add(f, x)
}"""
FAST = """(float[N,512] x) => (float[N,512] y) <float[512,512] a, float[512,512] b> {
  [first] c = MatMul(x, a) [relu] d = Relu(c) [second] y = MatMul(d, b)
}"""
UP = """(float[N,32,8,8] x) => (float[N,32,16,16] y)
<float[32,32,3,3] w, float[32,32,2,2] u, float[32,32,3,3] v> {
  [down] a = Conv<pads=[1,1,1,1]>(x, w) [relu] b = Relu(a) [up] c = ConvTranspose<strides=[2,2]>(b, u)
  [last] y = Conv<pads=[1,1,1,1]>(c, v)
}"""
TINY = "(float[N,4] x) => (float[N,4] y) <float[4,4] w> { [only] y = MatMul(x, w) }"
# Logarithms of a quiet band beside a loud one: what weights of a byte lose there is all that the output has.
FRONT = """(float[N,256] x) => (float[N,64] y)
<float[256,64] basis, float[64,256] u, float[256,64] v, float e = {1e-7}> {
  [spectrum] s = MatMul(x, basis) [power] p = Mul(s, s) [floor] f = Add(p, e) [log] l = Log(f)
  [up] a = MatMul(l, u) [relu] r = Relu(a) [down] y = MatMul(r, v)
}"""


@pytest.fixture
def decided(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (decide_model, run_export):
        monkeypatch.setattr(module, "decides_placement", decides_placement)
    return folder


def write(folder: Path, text: str, inputs: np.ndarray, **constants: np.ndarray) -> None:
    (folder / "net.onnx").write_bytes(serialized(build(text, constants=constants)))
    np.savez(folder / "net.npz", x=inputs.astype(np.float32))


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operators(path: str) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_a_layer_without_an_integer_kernel_makes_floats_of_its_bytes_once(decided: Path, ptq: Ptq) -> None:
    write(
        decided,
        UP,
        noise(16, 32, 8, 8),
        **{n: noise(32, 32, k, k) for n, k in (("w", 3), ("u", 2), ("v", 3))},
    )
    for words in ("", " --prefer accuracy"):
        assert ptq(f"quantize net.onnx --data net.npz --run up{words}").status == 0
        graph = onnx.load("up/model_int8.onnx").graph
        (up,) = (node for node in graph.node if node.op_type == "ConvTranspose")
        (made,) = (node for node in graph.node if node.output[0] == up.input[1])
        assert made.op_type == "Mul" and operators("up/model_int8.onnx")["Cast"] == 1
        assert ptq("verify --run up").status == 0


def test_layers_that_are_slower_in_integers_keep_their_bytes_and_compute_in_float(
    decided: Path, ptq: Ptq
) -> None:
    write(decided, SLOW, noise(16, 8, 24, 24))
    result = json.loads(ptq("quantize net.onnx --data net.npz --run auto --json").out)["export"]
    layers = {layer["name"]: layer for layer in result["layers"]}
    assert not layers["depthwise"]["integer"] and layers["wide"]["integer"]
    assert layers["depthwise"]["reason"] == "computes in float: it is faster so"
    assert operators("auto/model_int8.onnx")["Cast"] == 1  # of a weight that is bytes in the file
    assert result["bytes"] < result["float_bytes"] and result["accuracy"]["sqnr_db"] > 30.0
    assert ptq("verify --run auto").status == 0
    text = ptq("quantize net.onnx --data net.npz --run auto --set runtime.threads=1")
    assert "accuracy: " in text.out and "\nsize: " in text.out
    assert "\nPASS: at least 20 dB, " in text.out or "slower" in text.out
    assert ptq("quantize net.onnx --data net.npz --run all --prefer accuracy").status == 0
    assert operators("all/model_int8.onnx")["Cast"] == 0
    # What is asked for by name stays in integers.
    asked = "--set override=*:quantize=true"
    assert ptq(f"quantize net.onnx --data net.npz --run asked {asked}").status == 0
    assert operators("asked/model_int8.onnx")["Cast"] == 0


def test_layers_that_are_faster_in_integers_stay_so(decided: Path, ptq: Ptq) -> None:
    write(decided, FAST, noise(16, 512))
    for run, prefer in (("auto", ""), ("accuracy", "--prefer accuracy")):
        assert ptq(f"quantize net.onnx --data net.npz --run {run} {prefer}").status == 0
    one, other = (onnx.load(f"{run}/model_int8.onnx") for run in ("auto", "accuracy"))
    assert one.graph == other.graph


def test_a_file_that_would_be_larger_is_not_written(decided: Path, ptq: Ptq) -> None:
    write(decided, TINY, noise(16, 4))
    refused = ptq("quantize net.onnx --data net.npz --run tiny")
    assert refused.status == 2 and not Path("tiny").exists()
    assert refused.err.splitlines()[-2].startswith("error PTQ-PLAN-003: int8 gains nothing for this model: ")
    assert refused.err.splitlines()[-1] == (
        "hint: pass --prefer size or --prefer accuracy to write it all the same"
    )
    for prefer in ("size", "accuracy"):
        made = ptq(f"quantize net.onnx --data net.npz --run tiny --prefer {prefer}")
        assert made.status == 0 and "\nsize: 907 bytes, 429.9 % of float" in made.out


def test_a_basis_before_a_logarithm_keeps_its_floats(decided: Path, ptq: Ptq) -> None:
    x = noise(32, 256, seed=1) * np.exp(3.0 * noise(32, 1, seed=2))
    basis = np.cos(np.outer(np.arange(256) + 0.5, np.arange(64)) * np.pi / 256).astype(np.float32)
    write(decided, FRONT, x, basis=basis)
    made = json.loads(ptq("quantize net.onnx --data net.npz --run front --json").out)["export"]
    assert made["accuracy"]["sqnr_db"] >= 20.0
    plain = ptq("quantize net.onnx --data net.npz --run plain --recover none --prefer accuracy")
    assert plain.status == 0
    judged = json.loads(ptq("evaluate --run plain --eval-data net.npz --json").out)["metrics"]
    assert next(item["quantized_value"] for item in judged if item["name"] == "sqnr_db") < 20.0


def test_the_goal_is_a_key_and_a_limit_raises_it(decided: Path, ptq: Ptq) -> None:
    write(decided, RECURRENT, np.exp(2.5 * noise(32, 20, 64)))
    reached = {}
    for words in ("--set accuracy.goal_db=1", "", "--min sqnr_db=30"):
        made = ptq(f"quantize net.onnx --data net.npz --json --set run.evaluate=false {words}")
        reached[words] = json.loads(made.out)["export"]["accuracy"]
    assert [item["goal_db"] for item in reached.values()] == [1.0, 20.0, 30.0]
    low, usual, high = (item["sqnr_db"] for item in reached.values())
    assert low < 20.0 <= usual and high >= 30.0


def test_states_that_are_always_zero_are_noticed(decided: Path, ptq: Ptq) -> None:
    text = """(float[N,64] x, float[N,64] state) => (float[N,64] y, float[N,64] stateN)
    <float[64,64] w> { a = MatMul(x, w) stateN = Add(a, state) y = Relu(stateN) }"""
    (decided / "net.onnx").write_bytes(serialized(build(text)))
    said = "states are always zero in these data (state)"
    for state, is_said in ((np.zeros((8, 64)), True), (noise(8, 64), False)):
        np.savez(decided / "net.npz", x=noise(8, 64), state=state.astype(np.float32))
        made: Any = ptq("quantize net.onnx --data net.npz --run state --prefer size")
        assert made.status == 0 and (said in made.out) == is_said, made.err


def test_a_file_of_a_folder_that_gains_nothing_stays_float(decided: Path, ptq: Ptq) -> None:
    parts = decided / "parts"
    parts.mkdir()
    (parts / "large.onnx").write_bytes(
        serialized(build(FAST, constants={"a": noise(512, 512), "b": noise(512, 512, seed=1)}))
    )
    small = TINY.replace("N,4] x", "N,512] x").replace("MatMul(x, w)", "MatMul(m, w)")
    small = small.replace("float[4,4] w>", "float[1,4] w, int64[1] axes = {1}>").replace(
        "{ [only]", "{ [mean] m = ReduceMean(x, axes) [only]"
    )
    (parts / "tiny.onnx").write_bytes(serialized(build(small, constants={"w": noise(1, 4)})))
    np.savez(decided / "both.npz", x=noise(32, 512))
    made = ptq("quantize parts --data both.npz --run run -o out")
    assert made.status == 0, made.err
    (tiny,), (large,) = ((decided / "out").glob(f"{name}*.onnx") for name in ("tiny", "large"))
    assert operators(str(tiny)) == Counter(ReduceMean=1, MatMul=1)
    assert operators(str(large))["QuantizeLinear"]
    assert "int8 gains nothing for this model" in (decided / "run/folder.json").read_text()


def test_of_layers_with_ranges_at_each_run_the_one_with_huge_values_computes_in_float(
    decided: Path, ptq: Ptq
) -> None:
    inputs = noise(32, 512)
    inputs[:, :3] *= 3000.0  # Each row has a scale, and these leave the other values of the row no step.
    weight = noise(512, 512)
    weight[:3] = 0.0
    write(decided, FAST, inputs, a=weight, b=noise(512, 512, seed=1))
    words = "quantize net.onnx --data net.npz --preset dynamic_int8 --run run"
    plain = json.loads(ptq(f"{words} --recover none --json").out)["export"]
    assert operators(plain["output"])["MatMulInteger"] == 2
    result = json.loads(ptq(f"{words} --json").out)["export"]
    assert operators(result["output"])["MatMulInteger"] == 1
    assert (result["float_layers"]["layers"], result["float_layers"]["dynamic"]) == (["first"], ["second"])
    assert result["accuracy"]["sqnr_db"] >= 20.0 > result["float_layers"]["before"]
