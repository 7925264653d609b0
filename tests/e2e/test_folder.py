"""A folder as model: each file is quantized, what they share is stored once, and a cache gives the same."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.e2e.conftest import SAMPLES, Ptq

SAMPLE = SAMPLES / "shakespeare_language_model"
GRAPHS = ("model.onnx", "decoder_with_past_model.onnx")
START = (593, 45, 37, 47, 14, 199, 477, 325)
"""ROMEO. What is"""
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The language model as an exporter leaves it: two graphs that read one file of weights, and JSON."""
    folder = tmp_path_factory.mktemp("exported")
    for name in (*GRAPHS, "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes((SAMPLE / name).read_bytes())
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def open_model(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def inputs_of(ids: np.ndarray, past: int) -> dict[str, np.ndarray]:
    count = past + ids.shape[1]
    positions = np.arange(past, count)[None]
    return {"input_ids": ids, "attention_mask": np.ones((1, count), np.int64), "position_ids": positions}


def without_cache(session: onnxruntime.InferenceSession) -> tuple[list[int], np.ndarray]:
    """Generate greedily; all tokens run again for each new one."""
    ids, logits = list(START), []
    for _ in range(NEW_TOKENS):
        (found,) = session.run(None, inputs_of(np.array([ids]), 0))
        logits.append(found[0, -1])
        ids.append(int(found[0, -1].argmax()))
    return ids, np.array(logits)


def with_cache(session: onnxruntime.InferenceSession) -> tuple[list[int], np.ndarray]:
    """Generate greedily; the cache is empty at first, and then one token runs at a time."""
    caches = session.get_inputs()[3:]
    assert all(item.name.startswith("past_key_values.") for item in caches)
    cache: Mapping[str, Any] = {item.name: np.zeros((1, 2, 0, 32), np.float32) for item in caches}
    ids, logits, new, past = list(START), [], np.array([START]), 0
    for _ in range(NEW_TOKENS):
        found, *present = session.run(None, inputs_of(new, past) | dict(cache))
        cache, past = dict(zip(cache, present, strict=True)), past + new.shape[1]
        logits.append(found[0, -1])
        ids.append(int(found[0, -1].argmax()))
        new = np.array([ids[-1:]])
    return ids, np.array(logits)


def stored(path: Path) -> dict[str, tuple[int, int]]:
    """Where the graph's large constants lie in the file beside it."""
    found = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = {item.key: item.value for item in tensor.external_data}
            found[tensor.name] = int(place["offset"]), int(place["length"])
    return found


@pytest.mark.parametrize(("preset", "suffix"), [("w4_block32", "q4"), ("dynamic_int8", "quantized")])
def test_a_folder_is_quantized_without_data_and_its_cache_gives_the_same_tokens(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ptq: Ptq, preset: str, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = ptq(f"quantize {exported} --preset {preset} -o out --no-latency")
    assert told.status == 0, told.err
    names = [name.replace(".onnx", f"_{suffix}.onnx") for name in GRAPHS]
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(
        [*names, f"model_{suffix}.onnx_data", "config.json", "tokenizer.json"]
    )
    places = [stored(Path("out", name)) for name in names]
    assert places[0] and set(places[0].values()) == set(places[1].values()), "the same integers and scales"
    summary = json.loads(Path("ptq-run/folder.json").read_text())
    assert summary["bytes"] == sum(path.stat().st_size for path in Path("out").glob("*.onnx*"))
    assert summary["shared_constants"] == len(set(places[0].values()))
    assert [item["output"] for item in summary["files"]] == [str(Path("out", name)) for name in names]
    ids, logits = without_cache(open_model(Path("out", names[0])))
    cached_ids, cached_logits = with_cache(open_model(Path("out", names[1])))
    assert cached_ids == ids
    np.testing.assert_allclose(cached_logits, logits, atol=1e-3)
    (expected,) = open_model(exported / GRAPHS[0]).run(None, inputs_of(np.array([START]), 0))
    assert 0.99 < np.corrcoef(logits[0], expected[0, -1])[0, 1] < 1.0
