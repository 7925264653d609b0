"""The two operators that everything here inserts, and the constants they read."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Add a constant to the graph.

    Requires: no value of the graph has that name.
    """
    tensor = ir.tensor(np.asarray(array, order="C"), name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def make_quantize(source: ir.Value, scale: ir.Value, zero_point: ir.Value, name: str) -> ir.Node:
    """Return a QuantizeLinear of ``source``, per tensor."""
    node = ir.node("QuantizeLinear", [source, scale, zero_point], name=name)
    output = node.outputs[0]
    output.name, output.type, output.shape = f"{name}.output", zero_point.type, source.shape
    return node


def make_dequantize(
    source: ir.Value, scale: ir.Value, zero_point: ir.Value | None, name: str, axis: int | None = None
) -> ir.Node:
    """Return a DequantizeLinear of ``source``, per tensor or along ``axis``.

    Edge case:
        An int32 bias has no zero point: the operator takes it as 0.
    """
    inputs = [source, scale] if zero_point is None else [source, scale, zero_point]
    attributes = {} if axis is None else {"axis": axis}
    node = ir.node("DequantizeLinear", inputs, attributes, name=name)
    output = node.outputs[0]
    output.name, output.shape = f"{name}.output", source.shape
    output.type = ir.TensorType(ir.DataType.FLOAT)
    return node
