"""Language models whose data, caches and positions do not fit: each has its code and a hint."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.each_case import each_case, table
from tests.graphs import parsed
from tests.small_tokenizers import WORDS, save_tokenizers

TOKENS, WIDTH, LONGEST = len(WORDS) + 1, 16, 20
CACHE = "past_key_values.0.key"
RANDOM = np.random.default_rng(0)
TEXT_MODEL = """(int64[n,t] input_ids) => (float[n,t,TOKENS] logits) {
    word = Gather(words, input_ids)
    sizes = Shape(input_ids)
    length = Gather(sizes, one)
    counted = Range(zero, length, one)
    place = Gather(places, counted)
    x = Add(word, place)
    [head] logits = MatMul(x, head) }"""


def save(name: str, tokens: int, *others: tuple[str, int, Any]) -> None:
    """Write a model that has a table of words, and one of positions that no input names."""
    arrays = {
        "words": RANDOM.standard_normal((tokens, WIDTH)).astype(np.float32),
        "places": RANDOM.standard_normal((LONGEST, WIDTH)).astype(np.float32),
        "head": RANDOM.standard_normal((WIDTH, tokens)).astype(np.float32),
        "zero": 0,
        "one": 1,
    }
    model = parsed(TEXT_MODEL.replace("TOKENS", str(tokens)), arrays)
    for other in others:
        size = f"{other[0]}.size"
        model.graph.node.append(helper.make_node("Shape", [other[0]], [size]))
        model.graph.input.append(helper.make_tensor_value_info(*other))
        model.graph.output.append(helper.make_tensor_value_info(size, TensorProto.INT64, ["rank"]))
    onnx.save(model, name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text with its tokenizer, and models that it does not fit."""
    folder = tmp_path_factory.mktemp("tokens")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save("model.onnx", TOKENS)
        save("small.onnx", 3)
        save("cache.onnx", TOKENS, (CACHE, TensorProto.FLOAT, None))
        save("open.onnx", TOKENS, (CACHE, TensorProto.FLOAT, ["n", "heads", "past", 8]))
        save("branch.onnx", TOKENS, ("use_cache_branch", TensorProto.BOOL, [1]))
        save("rank.onnx", TOKENS, ("image", TensorProto.FLOAT, None))
    save_tokenizers(folder)
    (folder / "text.txt").write_text("\n".join(" ".join(RANDOM.choice(WORDS, 8)) for _ in range(80)))
    return folder


TEXT = "--data text.txt --set text.tokenizer=words.json"
CASES = table(f"""
    small.onnx {TEXT} | PTQ-TEXT-001 | does not fit the model | belongs to this
    model.onnx {TEXT} --set text.window=40 | PTQ-TEXT-002 \
        | 'text.window' is 40 tokens, but the model has positions for 20 \
        | --set text.window=20 or shorter
    cache.onnx --preset dynamic_int8 | PTQ-TEXT-003 \
        | the cache input '{CACHE}' of model 'cache.onnx' has no shape | [batch, 9, past_length, 64]
    open.onnx {TEXT} | PTQ-TEXT-003 | how many heads | fixed sizes
    branch.onnx {TEXT} | PTQ-DATA-002 | use_cache_branch | --set model.inputs.use_cache_branch=false
    rank.onnx --preset w4_block32 | PTQ-MODEL-005 | 'image' | rank of each
    model.onnx --preset w4_block32 --set weights.block_size=33 | PTQ-PLAN-002 \
        | reads blocks of 16, 32, 64, 128, 256, and 'head' asks for 33 | block_size = 32
""")


@each_case("words, code, message, hint", CASES)
def test_what_does_not_fit_has_a_code_and_a_hint(models, monkeypatch, ptq, words, code, message, hint):
    monkeypatch.chdir(models)
    told = ptq(f"quantize {words} --run bad-run")
    error, hinted = told.err.splitlines()
    assert (told.status, error.startswith(f"error {code}: "), message in error) == (2, True, True), told.err
    assert hinted.startswith("hint: ") and hint in hinted
    assert not Path("bad-run").exists()


def test_text_gets_windows_that_the_positions_of_a_model_allow(models, monkeypatch, ptq):
    monkeypatch.chdir(models)
    told = ptq(f"calibrate model.onnx {TEXT} --run good-run")
    assert told.status == 0, told.err
    assert f"on {80 * 8 // LONGEST} samples" in told.out
