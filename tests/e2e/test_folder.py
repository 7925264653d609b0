"""A folder as model: each file is quantized, what they share is stored once, and a cache gives the same."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.e2e.conftest import SAMPLES
from tests.each_case import each_case, table

SAMPLE = SAMPLES / "shakespeare_language_model"
GRAPHS = ("model.onnx", "decoder_with_past_model.onnx")
# ROMEO. What is
START = (593, 45, 37, 47, 14, 199, 477, 325)
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


@pytest.mark.parametrize(
    ("preset", "suffix"),
    [("w4_block32", "q4"), pytest.param("dynamic_int8", "quantized", marks=pytest.mark.nightly)],
)
def test_a_folder_is_quantized_without_data_and_its_cache_gives_the_same_tokens(
    exported, tmp_path, monkeypatch, ptq, preset, suffix
):
    monkeypatch.chdir(tmp_path)
    told = ptq(f"quantize {exported} --preset {preset} -o out --set evaluation.latency=false")
    assert told.status == 0, told.err
    names = [name.replace(".onnx", f"_{suffix}.onnx") for name in GRAPHS]
    statements = [name.replace(".onnx", ".intoto.json") for name in names]
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(
        [*names, *statements, f"model_{suffix}.onnx_data", "config.json", "tokenizer.json"]
    )
    for name in statements:
        for item in json.loads(Path("out", name).read_text())["subject"]:
            content = Path("out", item["name"]).read_bytes()
            assert item["digest"]["sha256"] == hashlib.sha256(content).hexdigest()
    refused = ptq(f"verify --rederive out/{names[0]} --run ptq-run/model")
    assert "PTQ-STATEMENT-002: the file cannot be made again: its weights or" in refused.err
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
    if preset == "w4_block32":
        verified = json.loads(ptq("verify out --random-inputs --json").out)["files"]
        assert [item["verdict"] for item in verified] == ["pass", "pass"]
        assert sorted(Path(item["model"]).name for item in verified) == sorted(names)
    (expected,) = open_model(exported / GRAPHS[0]).run(None, inputs_of(np.array([START]), 0))
    assert 0.99 < np.corrcoef(logits[0], expected[0, -1])[0, 1] < 1.0


def test_a_folder_is_prepared_with_what_its_files_share(exported, tmp_path, monkeypatch, ptq):
    monkeypatch.chdir(tmp_path)
    told = ptq(f"export --float {exported} -o out --json")
    assert told.status == 0, told.err
    assert [item["difference"] < 1e-5 for item in json.loads(told.out)["files"]] == [True, True]
    made = sorted(path.name for path in Path("out").iterdir())
    assert made == sorted([*GRAPHS, "model.onnx_data", "config.json", "tokenizer.json"])
    assert Path("out/model.onnx_data").stat().st_size < 1.1 * (exported / "model.safetensors").stat().st_size
    inputs = inputs_of(np.array([START]), 0)
    (found,), (expected,) = (
        open_model(path / GRAPHS[0]).run(None, inputs) for path in (Path("out"), exported)
    )
    np.testing.assert_allclose(found, expected, atol=1e-3)
    before = Path("out/model.onnx").read_bytes()
    refused = ptq("export --float out -o out")
    assert (refused.status, "would overwrite the model's model.onnx" in refused.err) == (2, True), refused.err
    assert Path("out/model.onnx").read_bytes() == before


WIDTH = 32
RANDOM = np.random.default_rng(0)
SHARED = {
    "dense.weight": RANDOM.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6,
    "dense.bias": RANDOM.standard_normal(WIDTH).astype(np.float32),
}


def save_dense(path: Path, name: str, **arrays: np.ndarray) -> None:
    """Write a Gemm that all files share, and one of the file's own."""
    nodes = [
        helper.make_node("Gemm", ["x", "dense.weight", "dense.bias"], ["hidden"], "dense"),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", f"{name}.weight"], ["y"], name),
    ]
    weight = RANDOM.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    save_graph(path, nodes, {**SHARED, f"{name}.weight": weight}, TensorProto.FLOAT)


def save_graph(path: Path, nodes: list[Any], arrays: Mapping[str, np.ndarray], dtype: int) -> None:
    value = helper.make_tensor_value_info
    ends = [value("x", dtype, ["n", WIDTH])], [value("y", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "dense", *ends, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of one model, of which one is a look-up that nothing can be quantized of."""
    (tmp_path / "onnx").mkdir()
    for name in ("encoder", "decoder"):
        save_dense(tmp_path / "onnx" / f"{name}_model.onnx", name)
    look_up = helper.make_node("Gather", ["words", "x"], ["y"], "look_up")
    words = {"words": RANDOM.standard_normal((2, 3, 4)).astype(np.float32)}
    save_graph(tmp_path / "onnx" / "embed_tokens.onnx", [look_up], words, TensorProto.INT64)
    (tmp_path / "config.json").write_text("{}")
    for number, name in enumerate(("encoder_model", "decoder_model"), 1):
        (tmp_path / "calib").mkdir(exist_ok=True)
        x = number**2 * RANDOM.standard_normal((64, WIDTH)).astype(np.float32)
        np.savez(tmp_path / "calib" / f"{name}.npz", x=x)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dense_of(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers and scale of the shared weight, and its bias in real units."""
    model = onnx.load(path)
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    made = {node.output[0]: node for node in model.graph.node}
    gemm = next(node for node in model.graph.node if node.name == "dense")
    (weights, scale, *_), (bias, step, *_) = (
        [constants[name] for name in made[gemm.input[index]].input if name in constants] for index in (1, 2)
    )
    return weights, scale, bias * step


def test_data_decide_the_weights_of_all_files_once(parts, monkeypatch, ptq):
    monkeypatch.setattr("ptq_cli.folders.quantize_folder.HELD", 1 << 10)
    words = "--set evaluation.latency=false --set recovery.rungs=round -o out"
    missing = ptq(f"quantize . --data calib {words}")
    assert missing.status == 2
    assert "PTQ-DATA-005: no calibration data was given for 'onnx/embed_tokens.onnx'" in missing.err
    assert "hint: save it as 'calib/embed_tokens.npz'" in missing.err
    assert not Path("out").exists() and not Path("ptq-run").exists()
    np.savez("calib/embed_tokens.npz", x=np.zeros((64, WIDTH), np.int64))
    told = ptq(f"quantize . --data calib --exclude decoder --eval-data calib {words} --json")
    assert told.status == 0, told.err
    assert not list(parts.rglob("*.partial"))
    names = sorted(path.name for path in Path("out/onnx").iterdir())
    assert names == [
        "decoder_model_int8.intoto.json",
        "decoder_model_int8.onnx",
        "embed_tokens_int8.onnx",
        "encoder_model_int8.intoto.json",
        "encoder_model_int8.onnx",
    ]
    runs = [
        json.loads(Path("out/onnx", names[index]).read_text())["predicate"]["by_runs"] for index in (0, 3)
    ]
    assert runs == [["round"], ["round", "folder"]]
    assert Path("out/config.json").read_text() == "{}"
    files = {item["file"]: item for item in json.loads(told.out)["files"]}
    assert [
        files[f"onnx/{name}.onnx"]["result"]["export"]["taken"] for name in ("decoder_model", "encoder_model")
    ] == [0, 1]
    assert "cannot quantize anything" in files["onnx/embed_tokens.onnx"]["reason"]
    copied, source = (parts / name for name in ("out/onnx/embed_tokens_int8.onnx", "onnx/embed_tokens.onnx"))
    assert copied.read_bytes() == source.read_bytes()
    first, second = (dense_of(parts / f"out/onnx/{name}_model_int8.onnx") for name in ("decoder", "encoder"))
    nearest = np.abs(SHARED["dense.weight"]).max(axis=0) / 127
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    assert not np.allclose(first[1], nearest, rtol=1e-5), "the data decided"
    np.testing.assert_allclose(first[2], second[2], atol=1e-2)
    excluded = {
        item["name"]: item["integer"]
        for item in files["onnx/decoder_model.onnx"]["result"]["export"]["layers"]
    }
    assert (excluded["decoder"], excluded["dense"]) == (False, True)
    evaluated = ptq("evaluate out --eval-data calib --set evaluation.latency=false --min sqnr_db=5")
    assert evaluated.status == 0, evaluated.err
    assert evaluated.out.index("onnx/decoder_model_int8.onnx:") < evaluated.out.index(
        "encoder_model_int8.onnx:"
    )
    for name in ("encoder_model", "decoder_model"):
        report = json.loads(Path(f"ptq-run/onnx/{name}/report.json").read_text())
        assert report["model"]["quantized_model"]["name"] == f"{name}_int8.onnx"
        assert report["verdict"] == "pass"
    assert (
        ptq("evaluate out --eval-data calib --set evaluation.latency=false --min sqnr_db=90 --json").status
        == 3
    )


@each_case(
    "words, code, message",
    table("""
    quantize . --preset w4_block32 -o config.json | PTQ-FILE-002 | it is a file, and the model is a folder
    quantize . --preset w4_block32 --exclude nothing | PTQ-RECIPE-003 | onnx/decoder_model.onnx:
    quantize calib | PTQ-MODEL-010 | is a folder without ONNX files
    verify onnx | PTQ-MODEL-010 | is a folder without quantized ONNX files
    evaluate onnx --eval-data calib | PTQ-RUN-001 | ptq quantize FOLDER
    evaluate onnx --shard 1/2 | PTQ-USAGE-001 | a folder is not evaluated with --shard
    inspect . | PTQ-MODEL-010 | this command takes a single file
    quantize . --preset w4_block32 --metric sqnr_db | PTQ-DATA-005 | no evaluation data was given
"""),
)
def test_what_a_folder_cannot_be_asked_is_refused(parts, ptq, words, code, message):
    told = ptq(f"{words} --run run" if words.startswith("quantize") else words)
    assert (told.status, code in told.err, message in told.err, "hint: " in told.err) == (
        2,
        True,
        True,
        True,
    ), told
    assert not Path("run").exists() or not any(Path("run").iterdir())
