"""The two operators that everything here inserts, and the constants they read."""

from typing import Self

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array


class FreshNames:
    """Hands out names that no value of a model has.

    A layer may well have a parameter called ``scale``: a constant that took its name would take its place.

    Example:
        >>> names = FreshNames({"fc.scale"})
        >>> names.claim("fc.scale"), names.claim("fc.zero_point")
        ('fc.scale_2', 'fc.zero_point')
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)

    @classmethod
    def of(cls, graph: ir.Graph) -> Self:
        """Return names that are free in a graph and in the graphs nested in it."""
        nodes = list(graph.all_nodes())
        values = [value for node in nodes for value in (*node.outputs, *node.inputs) if value is not None]
        values += [*graph.inputs, *graph.initializers.values()]
        return cls({value.name or "" for value in values} | {node.name or "" for node in nodes})

    def claim(self, wanted: str) -> str:
        """Return ``wanted``, or with a number behind it where that is taken."""
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


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
