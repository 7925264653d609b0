"""Models that feed themselves, through the commands: recordings, states of their own, and errors by step."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ptq_cli.collectors.calibration_file import load_calibration
from tests.contracts.ops.case import graph
from tests.unit.plan.graphs import build, serialized

RECORDINGS, STEPS = 22, 12
GRU = graph(
    "float[N,16] x, float[N,24] h",
    "float[40,24] wz, float[40,24] wc, float[24,5] wo",
    "a = Concat<axis=1>(x, h)",
    "[gate] g = MatMul(a, wz)",
    "z = Sigmoid(g)",
    "[candidate] p = MatMul(a, wc)",
    "c = Tanh(p)",
    "d = Sub(c, h)",
    "e = Mul(z, d)",
    "h_out = Add(h, e)",
    "[head] y = MatMul(h_out, wo)",
    outputs="float[N,5] y, float[N,24] h_out",
)
LSTM = graph(
    "float[N,16] x, float[1,N,24] h0, float[1,N,24] c0",
    "float[1,96,16] w, float[1,96,24] r, float[1,192] b, float[24,5] wo, int64[1] first = {0}, "
    "int64[1] none = {0}",
    "t = Unsqueeze(x, first)",
    '[lstm] all, hn, cn = LSTM<hidden_size=24>(t, w, r, b, "", h0, c0)',
    "s = Squeeze(hn, none)",
    "[head] y = MatMul(s, wo)",
    outputs="float[N,5] y, float[1,N,24] hn, float[1,N,24] cn",
)
RING = graph(
    "float[N,4,6] x, float[N,4,2] ring",
    "float[8,4,3] w, float[5,8,1] v, int64[1] start = {-2}, int64[1] end = {99}, int64[1] axis = {2}",
    "z = Concat<axis=2>(ring, x)",
    "[conv] a = Conv(z, w)",
    "b = Relu(a)",
    "[head] y = Conv(b, v)",
    "ring_out = Slice(z, start, end, axis)",
    outputs="float[N,5,6] y, float[N,4,2] ring_out",
)
DECODER = graph(
    "int64[N,S] input_ids, float[N,P,16] past_key, float[N,P,16] past_value",
    "float[32,16] table, float[16,16] wq, float[16,16] wk, float[16,16] wv, float[16,32] wo",
    "e = Gather(table, input_ids)",
    "[query] q = MatMul(e, wq)",
    "[key] k = MatMul(e, wk)",
    "[value] v = MatMul(e, wv)",
    "present_key = Concat<axis=1>(past_key, k)",
    "present_value = Concat<axis=1>(past_value, v)",
    "t = Transpose<perm=[0, 2, 1]>(present_key)",
    "s = MatMul(q, t)",
    "p = Softmax<axis=-1>(s)",
    "o = MatMul(p, present_value)",
    "[head] logits = MatMul(o, wo)",
    outputs="float[N,S,32] logits, float[N,T,16] present_key, float[N,T,16] present_value",
)
SHAPES = {"gru": (16,), "lstm": (16,), "ring": (4, 6)}
GRAPHS = {"gru": GRU, "lstm": LSTM, "ring": RING, "decoder": DECODER}
CARRIED = {
    "gru": {"h_out": "h"},
    "lstm": {"hn": "h0", "cn": "c0"},
    "ring": {"ring_out": "ring"},
    "decoder": {"present_key": "past_key", "present_value": "past_value"},
}


def walks(name: str, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if name == "decoder":
        return random.integers(0, 32, (RECORDINGS, STEPS))
    steps = random.standard_normal((RECORDINGS, STEPS, *SHAPES[name]))
    return (0.4 * np.cumsum(steps, axis=1)).astype(np.float32)


@pytest.fixture
def place(folder: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with the model ``m.onnx`` of the case, and recordings to calibrate and to evaluate on."""
    name = getattr(request, "param", "gru")
    (folder / "m.onnx").write_bytes(serialized(build(GRAPHS[name])))
    key = "input_ids" if name == "decoder" else "x"
    for seed, file in enumerate(("a.npz", "b.npz")):
        np.savez(folder / file, **{key: walks(name, seed)})
    return folder


def in_turn(path: str, recordings: np.ndarray, given: Mapping[int, np.ndarray] | None = None) -> Any:
    """Outputs [steps, recordings, …] of the GRU, and its states, which are its own if none are given."""
    session, outputs, states = onnxruntime.InferenceSession(path), [], []
    state = np.zeros((len(recordings), 24), np.float32)
    for step, frame in enumerate(recordings.swapaxes(0, 1)):
        state = state if given is None else given[step]
        states.append(state)
        output, state = session.run(None, {"x": frame, "h": state})
        outputs.append(output)
    return np.stack(outputs), states


def sqnr(exact: np.ndarray, noisy: np.ndarray) -> float:
    return float(10 * np.log10((exact**2).sum() / ((exact - noisy) ** 2).sum()))


def test_states_are_the_float_models_own_and_each_model_is_judged_on_its_own(place: Path, ptq: Any) -> None:
    made = ptq("quantize m.onnx --data a.npz --eval-data b.npz --set run.evaluate=true")
    assert made.status == 0, made.err
    assert (
        "each step reads 'h_out' as 'h' of the step before; --set data.carry.OUTPUT=INPUT names others"
        in made.err
    )
    assert f"on {RECORDINGS * STEPS} steps" in made.out

    _, states = in_turn("m.onnx", np.load("a.npz")["x"])
    seen = load_calibration(place / "ptq-run/calibration.safetensors").statistics["h"]
    assert (seen.low, seen.high) == pytest.approx((np.min(states), np.max(states)), rel=1e-6)

    data = np.load("b.npz")["x"]
    exact, own = in_turn("m.onnx", data)
    free, _ = in_turn("ptq-run/model_int8.onnx", data)
    forced, _ = in_turn("ptq-run/model_int8.onnx", data, own)
    report = json.loads((place / "ptq-run/report.json").read_text())
    stream = report["stream"]
    (plain,) = (item for item in report["metrics"] if item["name"] == "sqnr_db")
    (other,) = (item for item in stream["forced"] if item["name"] == "sqnr_db")
    assert plain["quantized_value"] == pytest.approx(sqnr(exact, free), abs=0.05)
    assert other["quantized_value"] == pytest.approx(sqnr(exact, forced), abs=0.05)
    assert plain["quantized_interval"]["method"] == "blocks", "recordings are drawn, not steps"
    assert (stream["carried"], stream["recordings"], stream["longest"]) == ({"h_out": "h"}, RECORDINGS, STEPS)
    assert [item["step"] for item in stream["curve"]] == list(range(STEPS))
    by_step = [item["free"]["sqnr_db"] for item in stream["curve"]]
    assert by_step == pytest.approx([sqnr(*pair) for pair in zip(exact, free, strict=True)], abs=0.1)
    assert stream["worst_step"] == int(np.argmin(by_step))
    drift = stream["drifts"][0]
    assert drift["loss"] == pytest.approx(by_step[0] - by_step[-1])
    assert drift["interval"]["low"] <= drift["loss"] <= drift["interval"]["high"]
    assert "over the steps" in made.out and "SQNR of the first output by step" in Path(
        "ptq-run/report.html"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["lstm", "ring", "decoder"], indirect=True)
def test_every_kind_of_state_is_carried(place: Path, ptq: Any, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["place"]
    metric = " --metric perplexity --metric next_token_agreement" if name == "decoder" else ""
    words = f"quantize m.onnx --data a.npz --eval-data b.npz --set run.evaluate=true{metric}"
    made = ptq(f"{words} --set export.prefer=size")
    assert made.status == 0, made.err
    report = json.loads((place / "ptq-run/report.json").read_text())
    assert report["stream"]["carried"] == CARRIED[name]
    assert report["stream"]["longest"] == STEPS and report["evaluation"]["unit"] == "step"
    if name != "decoder":
        return
    # Teacher forcing over caches is the perplexity of the whole text.
    tokens, text = np.load("b.npz")["input_ids"], []
    session = onnxruntime.InferenceSession("m.onnx")
    empty = np.zeros((RECORDINGS, 0, 16), np.float32)
    past = {"past_key": empty, "past_value": empty}
    for step in range(STEPS - 1):
        scores, *caches = session.run(None, {"input_ids": tokens[:, step : step + 1], **past})
        past = dict(zip(past, caches, strict=True))
        scores = scores[:, 0].astype(np.float64)
        chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        text.append(chances[np.arange(RECORDINGS), tokens[:, step + 1]])
    (perplexity,) = (item for item in report["metrics"] if item["name"] == "perplexity")
    assert perplexity["float_value"] == pytest.approx(np.exp(-np.mean(np.log(text))), rel=1e-4)


def test_recordings_of_many_lengths_in_files_are_cut_from_rows_of_values(place: Path, ptq: Any) -> None:
    """A folder of raw rows, as of sounds: frames of 16 values, of which 4 are those of the frame before."""
    random = np.random.default_rng(0)
    for kind in ("calib", "eval"):
        (place / kind).mkdir()
        for number in range(6):
            values = random.standard_normal(12 * (9 + number) + number).astype(np.float32)
            np.save(place / kind / f"{number}.npy", values)
    words = "quantize m.onnx --data calib --eval-data eval --set data.frame=16,12 --set run.evaluate=true"
    made = ptq(f"{words} --set data.batch_size=4")
    assert made.status == 0, made.err
    report = json.loads((place / "ptq-run/report.json").read_text())
    assert report["evaluation"]["samples"] == sum(9 + number for number in range(6))
    assert (report["stream"]["recordings"], report["stream"]["longest"]) == (6, 14)
    assert [item["samples"] for item in report["stream"]["curve"]][-3:] == [3, 2, 1]


def test_what_is_carried_holds_for_every_command(place: Path, ptq: Any) -> None:
    assert ptq("calibrate m.onnx --data a.npz --set data.carry.h_out=h --set data.steps=8").status == 0
    assert ptq("export --set recovery.rungs=round --prefer size").status == 0
    for words in ("verify", "bench model.float.onnx model_int8.onnx --seconds 0.1"):
        files = words.replace(" model", " ptq-run/model")
        assert ptq(files).status == 0, files
    made = ptq("analyze --eval-data b.npz --set data.steps=4 --json")
    assert made.status == 0, made.err
    found = json.loads(made.out)
    assert found["samples"]["count"] == RECORDINGS * 4
    assert ptq("evaluate --eval-data b.npz").status == 0
    assert "PTQ-USAGE-001" in ptq("drift b.npz").err
    assert json.loads(Path("ptq-run/report.json").read_text())["stream"]["longest"] == 8
    tuned = ptq("tune m.onnx --data a.npz --budget sqnr_db=20 --run tuned --set evaluation.latency=false")
    assert tuned.status == 0, tuned.err


def test_shards_hold_whole_recordings_and_merge_exactly(place: Path, ptq: Any) -> None:
    assert ptq("calibrate m.onnx --data a.npz --set data.batch_size=4 --run whole").status == 0
    for number in (1, 2):
        words = f"calibrate m.onnx --data a.npz --set data.batch_size=4 --shard {number}/2 --run s{number}"
        assert ptq(words).status == 0
    assert ptq("merge s1 s2 --run merged").status == 0
    whole, merged = (Path(name, "calibration.safetensors").read_bytes() for name in ("whole", "merged"))
    assert whole == merged


def test_a_limit_on_drift_ends_with_status_3(place: Path, ptq: Any) -> None:
    words = "quantize m.onnx --data a.npz --eval-data b.npz --set gate.max_drift."
    assert ptq(f"{words}sqnr_db=60").status == 0
    report = json.loads(Path("ptq-run/report.json").read_text())
    loss = {item["metric"]: item["loss"] for item in report["stream"]["drifts"]}
    worst = max(loss, key=lambda name: loss[name])
    limit = max(loss[worst] / 2, 0)
    if loss[worst] > 0:
        missed = ptq(f"gate ptq-run/report.json --set gate.max_drift.{worst}={limit}")
        assert missed.status == 3 and f"drift of {worst}" in missed.err


BAD = {
    "unknown output": (
        "--set data.carry.h_ot=h",
        "PTQ-DATA-010",
        "the model has no output 'h_ot' (did you mean 'h_out'?)",
        "its outputs: y, h_out",
    ),
    "unknown input": (
        "--set data.carry.h_out=k",
        "PTQ-DATA-010",
        "the model has no input 'k'",
        "its inputs: x, h",
    ),
    "another shape": (
        "--set data.carry.y=h",
        "PTQ-DATA-010",
        "the output 'y' has shape [?, 5], and the input 'h' [?, 24]",
        "name the output",
    ),
    "nothing carried": (
        "--set data.carry.*=none",
        "PTQ-DATA-002",
        "no array for input 'h'",
        "name each array",
    ),
    "not a pair": ("--set data.carry.h_out", "PTQ-USAGE-001", "is not of the form KEY=VALUE", "for example"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_carried_is_refused(place: Path, refuse: Any, case: str) -> None:
    words, code, text, hint = BAD[case]
    refuse(f"calibrate m.onnx --data a.npz {words} --run new", code, text, hint=hint)
