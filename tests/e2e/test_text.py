"""A language model with positions and a cache, from text files to a gate on its perplexity."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.each_case import each_case, table
from tests.graphs import parsed
from tests.small_tokenizers import WORDS, save_tokenizers

ROWS, WIDTH, POSITIONS = len(WORDS) + 1, 16, 32
PERPLEXITY = "--metric perplexity --metric next_token_agreement --set gate.max_ratio.perplexity=1.05"

LANGUAGE = f"""
(int64[n,t] input_ids, int64[n,t] position_ids, float[n,2,past,{WIDTH // 2}] "past_key_values.0.key")
    => (float[n,t,{ROWS}] logits) {{
    words = Gather(table, input_ids)
    where = Gather(places, position_ids)
    x = Add(words, where)
    apart = Reshape(x, heads)
    key = Transpose<perm = [0, 2, 1, 3]>(apart)
    "present.0.key" = Concat<axis = 2>("past_key_values.0.key", key)
    seen = CumSum("present.0.key", axis)
    back = Transpose<perm = [0, 2, 1, 3]>(seen)
    mixed = Reshape(back, flat)
    hidden = MatMul(mixed, up)
    active = Relu(hidden)
    logits = MatMul(active, down) }}"""


@pytest.fixture
def language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a language model, its tokenizer, and text."""
    rng = np.random.default_rng(0)
    constants = {
        "table": rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
        "places": (rng.standard_normal((POSITIONS, WIDTH)) / 4).astype(np.float32),
        "up": (rng.standard_normal((WIDTH, 48)) / 4).astype(np.float32),
        "down": (rng.standard_normal((48, ROWS)) / 3).astype(np.float32),
        "heads": [0, 0, 2, WIDTH // 2],
        "flat": [0, 0, WIDTH],
        "axis": 2,
    }
    onnx.save(parsed(LANGUAGE, constants), tmp_path / "model.onnx")
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
    text = "--data calib.txt --set text.tokenizer=words.json --set text.window=16"
    found = ptq(f"quantize model.onnx {text} --eval-data eval.txt {PERPLEXITY}")
    assert found.status == 0, found.err
    report = json.loads((language / "ptq-run/report.json").read_text())
    ids = [WORDS.index(word) for word in (language / "eval.txt").read_text().split()]
    windows = np.array(ids[: len(ids) // 16 * 16]).reshape(-1, 16)
    measured = {metric["name"]: metric for metric in report["metrics"]}
    perplexity = measured["perplexity"]
    assert report["evaluation"]["samples"] == len(windows) == 15
    for key, name in (("float_value", "model.float.onnx"), ("quantized_value", "model_int8.onnx")):
        assert perplexity[key] == pytest.approx(perplexity_of(language / "ptq-run" / name, windows), rel=1e-6)
    gate = report["gates"][0]
    assert (gate["kind"], gate["value"], gate["passed"]) == ("max_ratio", perplexity["ratio"], True)
    assert gate["interval"] == perplexity["ratio_interval"]
    assert "perplexity relative to float" in found.out and "at most 1.05 times" in found.out
    assert "perplexity relative to float at most 1.05 times" in (language / "ptq-run/junit.xml").read_text()
    missed = ptq("gate ptq-run/report.json --set gate.max_ratio.perplexity=0.5")
    assert missed.status == 3 and "FAIL" in missed.out
    # The evaluation takes the tokenizer from the calibration, and may read other text in another way.
    again = ptq("evaluate --eval-data eval.txt --set text.window=8 --metric perplexity")
    assert again.status == 0, again.err
    assert json.loads((language / "ptq-run/report.json").read_text())["evaluation"]["samples"] == 30


@each_case(
    "words, code",
    table("""
    --data calib.txt --set text.tokenizer=model.onnx                      | PTQ-TEXT-001
    --data calib.txt --set text.tokenizer=words.json --set text.window=33 | PTQ-TEXT-002
    --data calib.txt                                             | PTQ-DATA-001
    --data calib.txt --set text.tokenizer=words.json --set text.tail=cut  | PTQ-RECIPE-003
"""),
)
def test_what_does_not_fit_is_refused_before_anything_is_written(language, ptq, words, code):
    found = ptq(f"quantize model.onnx {words}")
    assert (found.status, code in found.err, "hint: " in found.err) == (2, True, True), found.err
    assert not (language / "ptq-run").exists()
