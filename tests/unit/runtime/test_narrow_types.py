"""What ONNX Runtime's optimizer must leave alone, and that it computes the same then."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.arithmetic import round_to_float
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN
from ptq_cli.models.files.stored import serialize
from ptq_cli.qdq.write.block_weights import dynamic_pair
from ptq_cli.qdq.write.new_nodes import NewNodes, add_initializer
from ptq_cli.runtime.narrow_types import (
    BIAS_QUANTIZATION,
    DisabledOptimizers,
    disabled_optimizers,
    has_four_bits,
    without_four_bits,
)
from ptq_cli.runtime.session import Session


def model(dtype: int, scale_dtype: type, weight_dtype: int | None = None) -> bytes:
    """Relu, a pair, and a Conv with a bias, whose weight has a DequantizeLinear."""
    zero = helper.make_tensor("z", dtype, [], [0])
    scale = numpy_helper.from_array(np.asarray(0.01, scale_dtype), "s")
    random = np.random.default_rng(0)
    weight = helper.make_tensor("w", weight_dtype or dtype, [4, 3, 1, 1], random.integers(-7, 8, 12).tolist())
    bias = numpy_helper.from_array(np.asarray([0.5, -0.5, 1, 2], scale_dtype), "b")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"]),
        helper.make_node("Conv", ["d", "v", "b"], ["y"]),
    ]
    kind = TensorProto.FLOAT16 if scale_dtype is np.float16 else TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, kind, [1, n, 2, 2]) for name, n in (("x", 3), ("y", 4)))
    graph = helper.make_graph(nodes, "g", [x], [y], [zero, scale, weight, bias])
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize(
    ("dtype", "scale", "wanted"),
    [
        (TensorProto.INT8, np.float32, DisabledOptimizers()),
        (TensorProto.INT8, np.float16, DisabledOptimizers((BIAS_QUANTIZATION,))),
        (TensorProto.FLOAT8E4M3FN, np.float32, DisabledOptimizers((BIAS_QUANTIZATION,), everything=True)),
    ],
)
def test_it_computes_what_the_file_says(dtype: int, scale: type, wanted: DisabledOptimizers) -> None:
    content = model(dtype, scale)
    assert disabled_optimizers(content) == wanted
    x = np.random.default_rng(1).standard_normal((1, 3, 2, 2)).astype(scale)
    found, written = (
        Session(content, threads=1, optimize=optimize).run({"x": x})[0] for optimize in (True, False)
    )
    assert np.abs(found - written).max() < 2e-3 and np.abs(written).max() > 1


SCALE = np.float32(3.0 / 6 / 448)


def dynamic_model(dtype: ir.DataType) -> ir.Model:
    """One activation that is quantized at each run, and the shape of its 4-bit floats."""
    x = ir.Value(name="x", shape=ir.Shape(["n", 5, 48]), type=ir.TensorType(dtype))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 23}, name="g")
    scale = add_initializer(graph, "x.scale", np.asarray(SCALE))
    nodes = dynamic_pair(NewNodes(graph), x, scale)
    cast = ir.node("Cast", [nodes[-1].outputs[0]], {"to": ir.DataType.FLOAT}, name="y")
    sizes = [ir.node("Shape", [value], name=f"shape{i}") for i, value in enumerate(nodes[0].outputs)]
    graph.extend([*nodes, cast, *sizes])
    outputs = [node.outputs[0] for node in (cast, *sizes)]
    for value, kind, name in zip(outputs, (ir.DataType.FLOAT, *[ir.DataType.INT64] * 2), "yst", strict=True):
        value.name, value.type = name, ir.TensorType(kind)
    graph.outputs.extend(outputs)
    return ir.Model(graph, ir_version=11)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16], ids=lambda item: item.name)
def test_activations_are_rounded_as_by_our_own_arithmetic(dtype: ir.DataType) -> None:
    content = serialize(dynamic_model(dtype)).content
    assert has_four_bits(content) and not has_four_bits(without_four_bits(content))
    x = np.random.default_rng(0).standard_normal((3, 5, 48)).astype(dtype.numpy())
    x[0, 0, :16], x[0, 0, 16] = 0.0, 100.0  # A block of zeros, and a value beyond the range.
    found, shape, blocks = Session(content, threads=1).run({"x": x})
    rows = x.astype(np.float32).reshape(-1, 16)
    own = round_to_float(np.abs(rows).max(axis=1, keepdims=True) / (SCALE * np.float32(6)), FLOAT8_E4M3FN)
    scale = own * SCALE
    divisor = np.where(scale == 0, np.float32(1), scale)
    wanted = (round_to_float(rows / divisor, FLOAT4_E2M1) * scale).reshape(x.shape)
    assert np.array_equal(found, wanted) and np.abs(found).max() > 1
    assert (shape.tolist(), blocks.tolist()) == ([3, 5, 48], [3, 5, 3])
