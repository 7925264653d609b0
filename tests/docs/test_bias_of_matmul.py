"""The table of decision 0008: what ONNX Runtime makes of a quantized MatMul and the Add of its bias."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.runtime.session import Session, Written
from tests.each_case import each_case

MATRICES = {"none": {"MatMulIntegerToFloat"}, "float": {"Gemm"}, "int32": {"QGemm"}}
SEQUENCE = {
    "none": {"MatMulIntegerToFloat"},
    "float": {"MatMulIntegerToFloat", "Add"},
    "int32": {"MatMulIntegerToFloat", "Add"},
}
OPERATORS = {"MatMul", "MatMulIntegerToFloat", "Gemm", "QGemm", "Add"}
CHANNELS = 8


def build(shape: list[int | str], bias: str) -> bytes:
    constants = {
        "weight": np.ones((16, CHANNELS), np.int8),
        "weight.scale": np.full(CHANNELS, 0.01, np.float32),
        "weight.zero_point": np.zeros(CHANNELS, np.int8),
        "x.scale": np.float32(0.1),
        "x.zero_point": np.uint8(128),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x.scale", "x.zero_point"], ["x.q"]),
        helper.make_node("DequantizeLinear", ["x.q", "x.scale", "x.zero_point"], ["x.dq"]),
        helper.make_node(
            "DequantizeLinear", ["weight", "weight.scale", "weight.zero_point"], ["weight.dq"], axis=1
        ),
        helper.make_node("MatMul", ["x.dq", "weight.dq"], ["product"]),
    ]
    if bias == "float":
        constants["bias"] = np.ones(CHANNELS, np.float32)
    if bias == "int32":
        constants |= {
            "bias.q": np.ones(CHANNELS, np.int32),
            "bias.scale": np.full(CHANNELS, 0.001, np.float32),
        }
        nodes.append(helper.make_node("DequantizeLinear", ["bias.q", "bias.scale"], ["bias"], axis=0))
    last = ["Identity", ["product"]] if bias == "none" else ["Add", ["product", "bias"]]
    nodes.append(helper.make_node(*last, ["y"]))
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*shape[:-1], CHANNELS])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


@each_case("bias", ["none", "float", "int32"])
@each_case(
    "shape, wanted",
    [([4, 16], MATRICES), (["n", 16], MATRICES), ([4, 5, 16], MATRICES), (["n", 5, 16], SEQUENCE)],
    ids=lambda value: str(value) if isinstance(value, list) else "",
)
def test_what_onnx_runtime_makes_of_a_linear_layer(
    shape: list[int | str], wanted: dict[str, set[str]], bias: str, tmp_path: Path
) -> None:
    optimized = tmp_path / "optimized.onnx"
    Session(build(shape, bias), threads=1, writes=Written(optimized))
    found = {node.op_type for node in onnx.load(optimized).graph.node}
    assert found & OPERATORS == wanted[bias]
