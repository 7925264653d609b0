"""A model one of whose outputs is a constant: analyzed by the others."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ptq_cli
from ptq_cli.core.errors import MetricError


def quantized(folder: Path, outputs: list[str]) -> Path:
    """MatMul; its result and its weight are outputs."""
    random = np.random.default_rng(0)
    shapes = {"y": ["N", 4], "w": [8, 4]}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in outputs],
        [numpy_helper.from_array(random.standard_normal((8, 4)).astype(np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    np.savez(folder / "data.npz", x=random.standard_normal((32, 8)).astype(np.float32))
    ptq_cli.quantize(
        folder / "model.onnx", run=folder / "run", data=str(folder / "data.npz"), threads=1, latency=False
    )
    return folder / "run"


def test_it_is_passed_through(tmp_path: Path):
    run = quantized(tmp_path, ["y", "w"])
    result = ptq_cli.analyze(run=run, eval_data=str(tmp_path / "data.npz"), threads=1)
    assert [layer.op for layer in result.analysis.layers] == ["MatMul"]


def test_nothing_is_judged_by_it(tmp_path: Path):
    run = quantized(tmp_path, ["w", "y"])
    with pytest.raises(MetricError, match="the output 'w' is a constant"):
        ptq_cli.analyze(run=run, eval_data=str(tmp_path / "data.npz"), threads=1)
