"""The table of decision 0008: what ONNX Runtime makes of a quantized MatMul and the Add of its bias."""

from pathlib import Path

import numpy as np
import onnx

from ptq_cli.runtime.session import Session, Written
from tests.each_case import each_case
from tests.graphs import parsed

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
    nodes = """q = QuantizeLinear(x, "x.scale", "x.zero_point")
        d = DequantizeLinear(q, "x.scale", "x.zero_point")
        w = DequantizeLinear<axis = 1>(weight, "weight.scale", "weight.zero_point") product = MatMul(d, w)"""
    if bias == "float":
        constants["bias"] = np.ones(CHANNELS, np.float32)
    if bias == "int32":
        constants |= {
            "bias.q": np.ones(CHANNELS, np.int32),
            "bias.scale": np.full(CHANNELS, 1e-3, np.float32),
        }
        nodes += ' bias = DequantizeLinear<axis = 0>("bias.q", "bias.scale")'
    nodes += " y = Identity(product)" if bias == "none" else " y = Add(product, bias)"
    first = ",".join(map(str, shape[:-1]))
    graph = f"(float[{first},{shape[-1]}] x) => (float[{first},{CHANNELS}] y) {{ {nodes} }}"
    return bytes(parsed(graph, constants, opset=20, ir_version=10).SerializeToString())


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
