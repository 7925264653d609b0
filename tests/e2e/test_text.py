"""A language model with positions and a cache, from text files to a gate on its perplexity."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.each_case import each_case, table
from tests.small_tokenizers import WORDS, save_tokenizers

ROWS, WIDTH, POSITIONS = len(WORDS) + 1, 16, 32
PERPLEXITY = "--metric perplexity --metric next_token_agreement --max-ratio perplexity=1.05"


@pytest.fixture
def language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a language model, its tokenizer, and text."""
    rng = np.random.default_rng(0)
    constants = {
        "table": rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
        "places": (rng.standard_normal((POSITIONS, WIDTH)) / 4).astype(np.float32),
        "up": (rng.standard_normal((WIDTH, 48)) / 4).astype(np.float32),
        "down": (rng.standard_normal((48, ROWS)) / 3).astype(np.float32),
        "heads": np.array([0, 0, 2, WIDTH // 2]),
        "flat": np.array([0, 0, WIDTH]),
    }
    node, value = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Gather", ["table", "input_ids"], ["words"]),
        node("Gather", ["places", "position_ids"], ["where"]),
        node("Add", ["words", "where"], ["x"]),
        node("Reshape", ["x", "heads"], ["apart"]),
        node("Transpose", ["apart"], ["key"], perm=[0, 2, 1, 3]),
        node("Concat", ["past_key_values.0.key", "key"], ["present.0.key"], axis=2),
        node("CumSum", ["present.0.key", "axis"], ["seen"]),
        node("Transpose", ["seen"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "flat"], ["mixed"]),
        node("MatMul", ["mixed", "up"], ["hidden"]),
        node("Relu", ["hidden"], ["active"]),
        node("MatMul", ["active", "down"], ["logits"]),
    ]
    constants["axis"] = np.array(2)
    graph = helper.make_graph(
        nodes,
        "language",
        [
            value("input_ids", TensorProto.INT64, ["n", "t"]),
            value("position_ids", TensorProto.INT64, ["n", "t"]),
            value("past_key_values.0.key", TensorProto.FLOAT, ["n", 2, "past", WIDTH // 2]),
        ],
        [value("logits", TensorProto.FLOAT, ["n", "t", ROWS])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    save_tokenizers(tmp_path)
    for name, lines in (("calib.txt", 60), ("eval.txt", 40)):
        words = rng.choice(WORDS, (lines, 6))
        (tmp_path / name).write_text("\n".join(" ".join(line) for line in words))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def perplexity_of(path: Path, windows: np.ndarray) -> float:
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    places = np.broadcast_to(np.arange(windows.shape[1]), windows.shape)
    cache = np.zeros((len(windows), 2, 0, WIDTH // 2), np.float32)
    inputs = {"input_ids": windows, "position_ids": places, "past_key_values.0.key": cache}
    scores = session.run(None, inputs)[0][:, :-1].astype(np.float64)
    likely = scores - np.log(np.exp(scores).sum(axis=2, keepdims=True))
    return float(np.exp(-np.take_along_axis(likely, windows[:, 1:, None], axis=2).mean()))


def test_a_language_model_is_calibrated_and_judged_on_text(language, ptq, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = "--data calib.txt --tokenizer words.json --set text.window=16"
    found = ptq(f"quantize model.onnx {text} --eval-data eval.txt {PERPLEXITY}")
    assert found.status == 0, found.err
    report = json.loads((language / "ptq-run/report.json").read_text())
    ids = [WORDS.index(word) for word in (language / "eval.txt").read_text().split()]
    windows = np.array(ids[: len(ids) // 16 * 16]).reshape(-1, 16)
    measured = {metric["name"]: metric for metric in report["metrics"]}
    perplexity = measured["perplexity"]
    assert report["evaluation"]["samples"] == len(windows) == 15
    for key, name in (("float_value", "model.float.onnx"), ("quantized_value", "model.int8.onnx")):
        assert perplexity[key] == pytest.approx(perplexity_of(language / "ptq-run" / name, windows), rel=1e-6)
    gate = report["gates"][0]
    assert (gate["kind"], gate["value"], gate["passed"]) == ("max_ratio", perplexity["ratio"], True)
    assert gate["interval"] == perplexity["ratio_interval"]
    assert "perplexity relative to float" in found.out and "at most 1.05 times" in found.out
    assert "perplexity relative to float at most 1.05 times" in (language / "ptq-run/junit.xml").read_text()
    missed = ptq("gate ptq-run/report.json --max-ratio perplexity=0.5")
    assert missed.status == 3 and "FAIL" in missed.out
    # The evaluation takes the tokenizer from the calibration, and may read other text in another way.
    again = ptq("evaluate --eval-data eval.txt --set text.window=8 --metric perplexity")
    assert again.status == 0, again.err
    assert json.loads((language / "ptq-run/report.json").read_text())["evaluation"]["samples"] == 30


@each_case(
    "words, code",
    table("""
    --data calib.txt --tokenizer model.onnx                      | PTQ-TEXT-001
    --data calib.txt --tokenizer words.json --set text.window=33 | PTQ-TEXT-002
    --data calib.txt                                             | PTQ-DATA-001
    --data calib.txt --tokenizer words.json --set text.tail=cut  | PTQ-RECIPE-003
"""),
)
def test_what_does_not_fit_is_refused_before_anything_is_written(language, ptq, words, code):
    found = ptq(f"quantize model.onnx {words}")
    assert (found.status, code in found.err, "hint: " in found.err) == (2, True, True), found.err
    assert not (language / "ptq-run").exists()
