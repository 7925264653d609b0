"""What only moves values needs no measurement of its own."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ptq_cli
from ptq_cli.collectors.calibration_file import load_calibration


def test_a_layer_behind_a_reshape_is_quantized_though_what_lies_before_it_is_excluded(tmp_path, monkeypatch):
    """The product of attention is measured where it is made, and read behind a Reshape."""
    random = np.random.default_rng(0)
    weights = {"v": (16, 16), "w": (16, 64)}
    constants = [
        numpy_helper.from_array(random.normal(0, 0.2, size).astype(np.float32), name)
        for name, size in weights.items()
    ]
    constants.append(numpy_helper.from_array(np.array([-1, 16], np.int64), "shape"))
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["product"], "inner"),
        helper.make_node("Reshape", ["product", "shape"], ["flat"], "flatten"),
        helper.make_node("MatMul", ["flat", "w"], ["y"], "outer"),
    ]
    graph = helper.make_graph(
        nodes,
        "moved",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 64])],
        constants,
    )
    monkeypatch.chdir(tmp_path)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), "m.onnx")
    ptq_cli.calibrate("m.onnx", data=random.normal(size=(16, 4, 16)).astype(np.float32), recover=["none"])
    assert "flat" not in load_calibration(Path("ptq-run/calibration.safetensors")).statistics
    ptq_cli.export(exclude=["inner", "flatten"], output="q.onnx")
    graph = onnx.load("q.onnx").graph
    (outer,) = [node for node in graph.node if node.name == "outer"]
    made = {name: node.op_type for node in graph.node for name in node.output}
    assert [made[name] for name in outer.input] == ["DequantizeLinear", "DequantizeLinear"]
