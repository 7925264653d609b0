"""Prompts that both models continue greedily: on their own caches, and as whole sequences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.contracts.ops.case import graph
from tests.e2e.test_streams import DECODER, RECORDINGS, walks
from tests.unit.plan.graphs import build, serialized

TOKENS, VOCABULARY, ADDED = 6, 32, 8
# Each token is followed by the next one: what comes out is known.
CHAIN = graph(
    "int64[N,{length}] input_ids, int64[N,{length}] attention_mask",
    "float[32,32] table, float[32,32] next",
    "e = Gather(table, input_ids)",
    "m = Cast<to=1>(attention_mask)",
    "[head] s = MatMul(e, next)",
    "[mask] o = Unsqueeze(m, axis)",
    "logits = Mul(s, o)",
    outputs="float[N,{length},32] logits",
).replace("float[32,32] next", "float[32,32] next, int64[1] axis = {2}")


def chain(folder: Path, length: str) -> None:
    """A model of open or fixed length, and prompts of six tokens from 0 to 3 on, the second with four."""
    eye = np.eye(VOCABULARY, dtype=np.float32)
    weights = {"table": 8 * eye, "next": np.roll(eye, 1, axis=1)}
    (folder / "m.onnx").write_bytes(serialized(build(CHAIN.replace("{length}", length), constants=weights)))
    starts = np.arange(12)[:, None] % 4
    mask = np.ones((12, TOKENS), np.int64)
    mask[1, 4:] = 0
    behind = ((0, 0), (0, 0 if length == "S" else int(length) - TOKENS))
    given = {"input_ids": starts + np.arange(TOKENS), "attention_mask": mask}
    np.savez(folder / "a.npz", **{name: np.pad(array, behind) for name, array in given.items()})


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "ptq-run/report.json").read_text())
    return found


def metric(found: dict[str, Any]) -> dict[str, Any]:
    (measured,) = (item for item in found["metrics"] if item["name"] == "generated_equal")
    return dict(measured)


def continued(path: str, prompts: np.ndarray, count: int) -> np.ndarray:
    """Tokens [prompts, count] that a decoder adds, one at a time on its own caches."""
    session, found = onnxruntime.InferenceSession(path), []
    empty = np.zeros((len(prompts), 0, 16), np.float32)
    past, tokens = {"past_key": empty, "past_value": empty}, list(prompts.T[:, :, None])
    for step in range(prompts.shape[1] + count - 1):
        scores, *caches = session.run(None, {"input_ids": tokens[step], **past})
        past = dict(zip(past, caches, strict=True))
        if step >= prompts.shape[1] - 1:
            tokens.append(scores[:, -1].argmax(1)[:, None])
            found.append(tokens[-1][:, 0])
    return np.stack(found, axis=1)


def test_each_model_goes_on_behind_its_own_caches(folder: Path, ptq: Any) -> None:
    (folder / "m.onnx").write_bytes(serialized(build(DECODER)))
    for seed, file in enumerate(("a.npz", "b.npz")):
        np.savez(folder / file, input_ids=walks("decoder", seed))
    assert ptq("quantize m.onnx --data a.npz --set export.prefer=size").status == 0
    made = ptq(f"evaluate --eval-data b.npz --generate {ADDED}")
    assert made.status == 0, made.err

    prompts = np.load("b.npz")["input_ids"]
    one, other = (continued(f"ptq-run/model{name}.onnx", prompts, ADDED) for name in (".float", "_int8"))
    found = report(folder)
    told, measured = found["generation"], metric(found)
    firsts = [int(np.argmax(row)) if row.any() else None for row in one != other]
    assert told["first_differences"] == firsts
    assert measured["quantized_value"] == pytest.approx(np.mean(one == other))
    assert (told["prompts"], told["tokens"], told["unchanged"]) == (RECORDINGS, ADDED, firsts.count(None))
    assert told["median_equal"] == np.median([ADDED if place is None else place for place in firsts])
    example = told["examples"][0]
    place = int(example["prompt"].removeprefix("b.npz[").removesuffix("]"))
    assert (example["of_float"], example["quantized"]) == (one[place].tolist(), other[place].tolist())
    interval = measured["quantized_interval"]
    assert interval is None or interval["low"] <= measured["quantized_value"] <= interval["high"]
    line = f"{RECORDINGS} prompts continued by {ADDED} tokens"
    for text in (made.out, *(Path(f"ptq-run/report.{kind}").read_text("utf-8") for kind in ("md", "html"))):
        assert line in text and "generated" in text


@pytest.mark.parametrize("length", ["S", "16"], ids=["open", "fixed"])
def test_whole_sequences_grow_and_the_first_difference_is_where_a_row_was_changed(
    folder: Path, ptq: Any, length: str
) -> None:
    chain(folder, length)
    words = "--data a.npz --eval-data a.npz --set export.prefer=size"
    made = ptq(f"quantize m.onnx {words} --set evaluation.generate={ADDED} --min generated_equal=0.99")
    assert made.status == 0, made.err
    told = report(folder)["generation"]
    assert metric(report(folder))["quantized_value"] == 1.0
    assert told["unchanged"] == 12 and set(told["first_differences"]) == {None}
    ends = [start % 4 + (3 if start == 1 else TOKENS - 1) for start in range(12)]
    assert told["examples"][0]["of_float"] == list(range(ends[0] + 1, ends[0] + 1 + ADDED))
    assert told["examples"][1]["of_float"] == list(range(ends[1] + 1, ends[1] + 1 + ADDED)), (
        "without the mask"
    )

    # Behind token 10 the changed model says 20.
    model = onnx.load("ptq-run/model_int8.onnx")
    (weight,) = (
        item
        for item in model.graph.initializer
        if tuple(item.dims) == (VOCABULARY, VOCABULARY) and item.name.startswith("next")
    )
    changed = numpy_helper.to_array(weight).copy()
    changed[10, [11, 20]] = changed[10, [20, 11]]
    weight.CopyFrom(numpy_helper.from_array(changed, weight.name))
    onnx.save(model, "changed.onnx")
    missed = ptq(f"evaluate changed.onnx --generate {ADDED} --eval-data a.npz --min generated_equal=0.99")
    assert missed.status == 3 and "generated_equal" in missed.out, missed.err
    found = report(folder)
    assert found["generation"]["first_differences"] == [10 - end for end in ends]
    assert found["generation"]["unchanged"] == 0


BAD: dict[str, tuple[str, str, str, str]] = {
    "no token": ("--generate 0", "PTQ-RECIPE-003", "'evaluation.generate' is 0", "correct"),
    "no prompt continued": (
        "--min generated_equal=0.9",
        "PTQ-GATE-001",
        "there is a limit on 'generated_equal', and no prompt is continued",
        "--generate 32",
    ),
    "one value": (
        "--generate 4 --max-drop generated_equal=0.1",
        "PTQ-GATE-001",
        "generated_equal has no drop",
        "--min generated_equal",
    ),
    "too long": (
        "--generate 12",
        "PTQ-TEXT-002",
        "a.npz[0] has 6 tokens and is to get 12 more, and the model takes sequences of 16",
        "--generate 11",
    ),
    "shard": ("--generate 4 --shard 1/2", "PTQ-USAGE-001", "continued by one process", "--shard"),
}


def test_what_cannot_be_continued_is_refused(folder: Path, ptq: Any, refuse: Any) -> None:
    chain(folder, "16")
    assert ptq("quantize m.onnx --data a.npz --set export.prefer=size").status == 0
    for words, code, text, hint in BAD.values():
        refuse(f"evaluate --eval-data a.npz {words}", code, text, hint=hint)


def test_caches_that_the_data_hold_are_not_handed_on(folder: Path, ptq: Any, refuse: Any) -> None:
    (folder / "m.onnx").write_bytes(serialized(build(DECODER)))
    past = np.zeros((RECORDINGS, 3, 16), np.float32)
    np.savez("a.npz", input_ids=walks("decoder", 0), past_key=past, past_value=past)
    words = "--set data.carry.*=none --prefer size"
    assert ptq(f"quantize m.onnx --data a.npz {words}").status == 0
    text = "'past_key' is read from the data"
    refuse(
        "evaluate --eval-data a.npz --generate 4", "PTQ-DATA-010", text, hint="not --set 'data.carry.*=none'"
    )


NOT_TEXT = {
    "no tokens": (
        graph("float[N,8] x", "float[8,4] w", "[head] logits = MatMul(x, w)", outputs="float[N,4] logits"),
        {"x": np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)},
        "--generate needs a model that reads tokens",
    ),
    "no scores": (
        graph(
            "int64[N,S] input_ids",
            "float[32,16] table, float[16,8] w",
            "e = Gather(table, input_ids)",
            "m = ReduceMean<keepdims=0>(e, axis)",
            "[head] pooled = MatMul(m, w)",
            outputs="float[N,8] pooled",
        ).replace("float[16,8] w", "float[16,8] w, int64[1] axis = {1}"),
        {"input_ids": walks("decoder", 0)},
        "--generate needs scores of shape [batch, tokens, vocabulary], and the output 'pooled' has 2 axes",
    ),
}


@pytest.mark.parametrize("case", NOT_TEXT)
def test_a_model_that_writes_no_text_is_refused(folder: Path, ptq: Any, refuse: Any, case: str) -> None:
    text, arrays, message = NOT_TEXT[case]
    (folder / "m.onnx").write_bytes(serialized(build(text)))
    np.savez("a.npz", **arrays)
    assert ptq("quantize m.onnx --data a.npz --set export.prefer=size").status == 0
    words = "evaluate --eval-data a.npz --generate 4"
    refuse(words, "PTQ-METRIC-001", message, hint="leave --generate out")
