"""Weights in blocks: the file computes what its integers say, and kernels of ONNX Runtime read them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ptq_cli
from ptq_cli.core.errors import PtqError, TargetOverrideError
from ptq_cli.setup.run_directory import RunDirectory
from tests.each_case import each_case

# The hidden layer has an odd number of values, which is no whole number of blocks: MatMulNBits takes ceil(K
# / block_size) blocks (com.microsoft, version 1), the last of them filled up.
TOKENS, WIDTH, HIDDEN, BLOCK = 40, 64, 99, 32
OWN_ARITHMETIC = 2e-6  # Of the largest logit: ONNX Runtime adds the products of blocks in another order


def language_model(path: Path, *, tied: bool) -> None:
    """Write a table of embeddings, two layers, and a head with the same table or one of its own."""
    rng = np.random.default_rng(0)
    weights = {
        "embedding": rng.standard_normal((TOKENS, WIDTH)),
        "up.weight": rng.standard_normal((WIDTH, HIDDEN)) / 8,
        "down.weight": rng.standard_normal((HIDDEN, WIDTH)) / 10,
    }
    if not tied:
        weights["head.weight"] = rng.standard_normal((WIDTH, TOKENS))
    nodes = [
        helper.make_node("Gather", ["embedding", "ids"], ["embedded"], "embed"),
        helper.make_node("MatMul", ["embedded", "up.weight"], ["hidden"], "up"),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("MatMul", ["active", "down.weight"], ["added"], "down"),
        helper.make_node("Add", ["added", "embedded"], ["state"], "residual"),
    ]
    if tied:
        nodes.append(helper.make_node("Transpose", ["embedding"], ["head.weight"], "turn", perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["state", "head.weight"], ["logits"], "head"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "language_model",
        [value("ids", TensorProto.INT64, ["n", "length"])],
        [value("logits", TensorProto.FLOAT, ["n", "length", TOKENS])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def quantized(folder: Path, *, tied: bool = True, **settings: Any) -> Path:
    language_model(folder / "model.onnx", tied=tied)
    settings = {"activation_mode": "float", "weight_bits": 4, "weight_block_size": BLOCK, **settings}
    ptq_cli.quantize(folder / "model.onnx", run=folder / "run", latency=False, **settings)
    return RunDirectory(folder / "run").quantized_model


def session(path: Path, level: str, saved: Path | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    else:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def kernels(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@each_case(
    "settings, tied, lookup",
    [
        ({"runtime_operators": True}, True, "GatherBlockQuantized"),
        ({"runtime_operators": True, "weight_symmetric": False}, True, "GatherBlockQuantized"),
        ({"runtime_operators": True, "weight_bits": 2}, False, "GatherBlockQuantized"),
        ({"weight_bits": 8}, True, "Mul"),
        ({"weight_bits": 8, "weight_symmetric": False}, False, "Mul"),
        ({}, False, "Mul"),
    ],
    ids=["4", "4-zero-points", "2", "8", "8-zero-points", "4-without-runtime-operators"],
)
def test_the_runtime_reads_the_blocks_and_computes_what_the_integers_say(
    tmp_path: Path, settings: dict[str, Any], tied: bool, lookup: str
) -> None:
    path = quantized(tmp_path, tied=tied, **settings)
    onnx.checker.check_model(path, full_check=False)
    ids = np.random.default_rng(1).integers(0, TOKENS, (3, 5))
    expected = session(path, "0").run(None, {"ids": ids})[0]
    found = session(path, "0", tmp_path / "optimized.onnx").run(None, {"ids": ids})[0]
    assert np.abs(found - expected).max() <= OWN_ARITHMETIC * np.abs(expected).max()
    assert kernels(tmp_path / "optimized.onnx").count("MatMulNBits") == 3
    assert "MatMul" not in kernels(tmp_path / "optimized.onnx")
    assert kernels(tmp_path / "optimized.onnx").count(lookup) == 1
    (tmp_path / "optimized.onnx").unlink()
    rounded = session(path, "4", tmp_path / "optimized.onnx").run(None, {"ids": ids})[0]
    assert 0 < np.abs(rounded - expected).max() < 0.05 * np.abs(expected).max()


def classifier(path: Path) -> None:
    """Write Gemms as PyTorch's exporters do; the last one has the table of embeddings as its weight."""
    rng = np.random.default_rng(3)
    weights = {
        "embedding": rng.standard_normal((TOKENS, WIDTH)),
        "up.weight": rng.standard_normal((HIDDEN, WIDTH)) / 8,
        "up.bias": rng.standard_normal(HIDDEN),
        "down.weight": rng.standard_normal((WIDTH, HIDDEN)) / 10,
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "ids"], ["embedded"], "embed"),
        helper.make_node("Gemm", ["embedded", "up.weight", "up.bias"], ["hidden"], "up", transB=1),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("Gemm", ["active", "down.weight"], ["state"], "down", transB=1),
        helper.make_node("Gemm", ["state", "embedding"], ["logits"], "head", transB=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "classifier",
        [value("ids", TensorProto.INT64, ["n"])],
        [value("logits", TensorProto.FLOAT, ["n", TOKENS])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("settings", [{}, {"weight_symmetric": False}], ids=["recovered", "zero-points"])
def test_a_gemm_with_its_weight_turned_gets_a_kernel_too(tmp_path: Path, settings: dict[str, Any]) -> None:
    classifier(tmp_path / "model.onnx")
    ids = np.random.default_rng(1).integers(0, TOKENS, (64,))
    np.savez(tmp_path / "ids.npz", ids=ids)
    made = ptq_cli.quantize(
        tmp_path / "model.onnx",
        data=tmp_path / "ids.npz",
        run=tmp_path / "run",
        preset="w4_block32",
        recover=["round"],
        latency=False,
        **settings,
    )
    (effect,) = made.export.recovery.effects
    assert effect.kept and "head" in effect.layers
    path = tmp_path / "run/model_q4.onnx"
    onnx.checker.check_model(path, full_check=False)
    proof = ptq_cli.verify(path)
    assert [item.kernel for item in proof.operators if item.op == "Gemm"] == ["MatMulNBits"] * 3
    assert not proof.faults
    expected = session(path, "0").run(None, {"ids": ids})[0]
    found = session(path, "0", tmp_path / "optimized.onnx").run(None, {"ids": ids})[0]
    assert np.abs(found - expected).max() <= OWN_ARITHMETIC * np.abs(expected).max()
    assert kernels(tmp_path / "optimized.onnx").count("MatMulNBits") == 3
    floats = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"ids": ids})[0]
    assert np.abs(expected - floats).mean() < 0.2 * np.abs(floats).mean()
    # The table's integers serve the rows and the last layer.
    stored = [item.name for item in onnx.load(path).graph.initializer if TOKENS in item.dims]
    assert len([name for name in stored if name.endswith("quantized")]) == 1
    analysis = ptq_cli.analyze(run=tmp_path / "run", eval_data=tmp_path / "ids.npz", sensitivity=False)
    weights = {item.name: item for item in analysis.analysis.tensors if item.kind == "weight"}
    assert weights["up.weight"].sqnr_isolated_db > 15


def test_a_turned_weight_outside_the_graph_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier(tmp_path / "model.onnx")
    found = []
    for run, limit in (("whole", 2**31), ("apart", 1000)):
        monkeypatch.setattr("ptq_cli.models.files.storing.LARGEST_BYTES", limit)
        monkeypatch.setattr("ptq_cli.models.files.storing.SMALLEST_EXTERNAL", 500)
        made = ptq_cli.quantize(
            tmp_path / "model.onnx", run=tmp_path / run, preset="w4_block32", latency=False
        )
        graph = onnx.load(made.export.output).graph
        found.append({item.name: numpy_helper.to_array(item).tobytes() for item in graph.initializer})
    assert (tmp_path / "apart/model_q4.onnx.data").stat().st_size < 30_000
    assert found[0] == found[1]
    assert not any("transB" in str(node.attribute) for node in graph.node)


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    path = quantized(tmp_path, runtime_operators=True)
    stored = [item.name for item in onnx.load(path).graph.initializer if TOKENS in item.dims]
    assert sorted(stored) == ["embedding.quantized", "embedding.scale"]
    float_model = tmp_path / "model.onnx"
    assert path.stat().st_size < 0.3 * float_model.stat().st_size


def test_layers_that_share_a_weight_get_a_kernel_each(tmp_path: Path) -> None:
    language_model(tmp_path / "model.onnx", tied=False)
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.node[1].input[1] = model.graph.node[3].input[1] = "square.weight"
    square = np.random.default_rng(2).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
    model.graph.initializer.append(numpy_helper.from_array(square, "square.weight"))
    onnx.save(model, tmp_path / "model.onnx")
    ptq_cli.quantize(tmp_path / "model.onnx", run=tmp_path / "run", preset="w4_block32", latency=False)
    proof = ptq_cli.verify(tmp_path / "run/model_q4.onnx")
    assert [item.kernel for item in proof.operators if item.op == "MatMul"] == ["MatMulNBits"] * 3
    assert not proof.faults


def test_branches_read_blocks_of_weights_outside_them(tmp_path: Path) -> None:
    """As in a merged decoder, whose branches with and without a cache share their weights."""
    branches = {}
    for name, layer in (("then_branch", "late"), ("else_branch", "early")):
        nodes = [helper.make_node("MatMul", ["x", "square.weight"], [f"{layer}.y"], layer)]
        results = [helper.make_tensor_value_info(f"{layer}.y", TensorProto.FLOAT, ["n", WIDTH])]
        branches[name] = helper.make_graph(nodes, name, [], results)
    value = helper.make_tensor_value_info
    square = np.random.default_rng(2).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
    graph = helper.make_graph(
        [helper.make_node("If", ["use_cache_branch"], ["y"], "merged", **branches)],
        "merged",
        [value("x", TensorProto.FLOAT, ["n", WIDTH]), value("use_cache_branch", TensorProto.BOOL, [1])],
        [value("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(square, "square.weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    ptq_cli.quantize(tmp_path / "model.onnx", run=tmp_path / "run", preset="w4_block32", latency=False)
    path = tmp_path / "run/model_q4.onnx"
    proof = ptq_cli.verify(path, random_inputs=True)
    assert [item.kernel for item in proof.operators if item.op == "MatMul"] == ["MatMulNBits"] * 2
    assert proof.verdict == "pass"
    x = np.random.default_rng(3).standard_normal((3, WIDTH)).astype(np.float32)
    for takes_it in (True, False):
        inputs = {"x": x, "use_cache_branch": np.array([takes_it])}
        found = session(path, "0", tmp_path / f"{takes_it}.onnx").run(None, inputs)[0]
        assert (
            np.abs(found - session(path, "0").run(None, inputs)[0]).max()
            <= OWN_ARITHMETIC * np.abs(found).max()
        )
        assert 0 < np.abs(found - x @ square).max() < 0.3 * np.abs(found).max()


@each_case(
    "settings, error, message",
    [
        ({"weight_block_size": 512}, TargetOverrideError, "reads blocks of 16, 32, 64, 128, 256"),
        ({"weight_block_size": 8}, TargetOverrideError, "would be restored to floats at each run"),
        ({"weight_bits": 5}, TargetOverrideError, "reads weights of 2, 4, 8 bits"),
        (
            {"activation_mode": "static", "data": "ids.npz", "weight_symmetric": False},
            TargetOverrideError,
            "has symmetric weights",
        ),
    ],
)
def test_what_no_kernel_reads_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    error: type[PtqError],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("ids.npz", ids=np.zeros((4, 5), np.int64))
    with pytest.raises(error, match=message) as caught:
        quantized(tmp_path, **settings)
    assert caught.value.hint
    assert not (tmp_path / "run").exists()
