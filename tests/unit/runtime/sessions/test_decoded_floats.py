"""4-bit floats in operators that ONNX Runtime has: the numbers are those of our own rounding, bit for bit."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.arithmetic import round_to_float
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.graph_reading import FreshNames
from ptq_cli.qdq.write.block_weights import dynamic_pair
from ptq_cli.qdq.write.pair_nodes import add_initializer
from ptq_cli.runtime.block_levels import decoded, has_four_bits
from ptq_cli.runtime.session import Session

SCALE = np.float32(3.0 / 6 / 448)


def dynamic_model(dtype: ir.DataType) -> ir.Model:
    """One activation that is quantized at each run, and the shape of its 4-bit floats."""
    x = ir.Value(name="x", shape=ir.Shape(["n", 5, 48]), type=ir.TensorType(dtype))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 23}, name="g")
    scale = add_initializer(graph, "x.scale", np.asarray(SCALE))
    nodes = dynamic_pair(graph, x, scale, FreshNames.of(graph))
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
    assert has_four_bits(content) and not has_four_bits(decoded(content))
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


def test_a_model_without_them_is_left_alone() -> None:
    assert not has_four_bits(b"DequantizeLinear of nothing"[:0])
