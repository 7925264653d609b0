"""Constants and operators that passes add to a graph, named after what they belong to."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import RESULT, FreshNames, every_node, register_constant
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.models.preparing.rewriting import drop


class NewNodes:
    """Adds constants and operators under names that nothing else in a main graph, or inside it, has."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self._names = graph, FreshNames.of(graph)

    def claim(self, name: str) -> str:
        """Return the name, or one like it that is free."""
        return self._names.claim(name)

    def constant(self, name: str, array: npt.ArrayLike, home: ir.Graph | None = None) -> ir.Value:
        """Add a constant to the main graph, or to ``home``."""
        return add_initializer(home or self.graph, self.claim(name), np.asarray(array))

    def computed(self, name: str, shape: tuple[int, ...], make: Callable[[], Array]) -> ir.Value:
        """Add a constant of floats, computed whenever it is asked for: what it is made of is smaller."""
        name = self.claim(name)
        tensor = ir.LazyTensor(
            lambda: ir.tensor(make(), name=name), ir.DataType.FLOAT, ir.Shape(shape), name=name
        )
        return register_constant(self.graph, tensor)

    def put(
        self, reader: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], name: str, **of: Any
    ) -> ir.Value:
        """Put an operator in front of one that reads it; return its result. ``of`` goes to ``new_node``."""
        return put_in_front(reader, new_node(op_type, inputs, self.claim(name), **of))

    def quantize(
        self, source: ir.Value, scale: ir.Value, zero_point: ir.Value, name: str, axis: int | None = None
    ) -> ir.Node:
        """Make a QuantizeLinear, per tensor or along ``axis``, named after ``name``."""
        attributes = {} if axis is None else {"axis": axis}
        name = self.claim(f"{name}/{QUANTIZE}")
        inputs, dtype = [source, scale, zero_point], zero_point.dtype
        return new_node(QUANTIZE, inputs, name, attributes=attributes, dtype=dtype, shape=source.shape)

    def dequantize(
        self,
        source: ir.Value,
        parameters: Sequence[ir.Value | None],
        name: str,
        axis: int | None = None,
        block_size: int | None = None,
    ) -> ir.Node:
        """Make a DequantizeLinear, per tensor, along ``axis`` or in blocks along it, named after ``name``.

        ``parameters`` are the scale and the zero point, which is left out for an int32 bias: it is 0.
        """
        inputs = [source, *(value for value in parameters if value is not None)]
        attributes = {
            key: value for key, value in (("axis", axis), ("block_size", block_size)) if value is not None
        }
        name = self.claim(f"{name}/{DEQUANTIZE}")
        return new_node(
            DEQUANTIZE, inputs, name, attributes=attributes, dtype=ir.DataType.FLOAT, shape=source.shape
        )

    def pair(
        self, source: ir.Value, constants: tuple[ir.Value, ir.Value], name: str
    ) -> tuple[ir.Node, ir.Node]:
        """Make both nodes of a pair, per tensor."""
        quantize = self.quantize(source, *constants, name)
        return quantize, self.dequantize(quantize.outputs[0], constants, name)


def new_node(
    op_type: str,
    inputs: Sequence[ir.Value | None],
    name: str | None,
    *,
    attributes: Mapping[str, Any] | None = None,
    dtype: ir.DataType | None = None,
    shape: ir.Shape | None = None,
) -> ir.Node:
    """Make an operator with one result, named after it, of this type and shape."""
    node = ir.node(op_type, inputs, attributes or {}, name=name)
    result = node.outputs[0]
    result.name, result.shape = f"{name}{RESULT}", shape
    result.type = ir.TensorType(dtype) if dtype is not None else None
    return node


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Add a constant to the graph, in which no value may have that name."""
    # Not ir.tensor, which asks of every array whether it is a tensor of some other library.
    return register_constant(graph, ir.Tensor(np.asarray(array, order="C"), name=name))


def put_in_front(reader: ir.Node, *nodes: ir.Node) -> ir.Value:
    """Insert nodes before one that reads them, in that one's graph; return the last one's result."""
    own_graph(reader).insert_before(reader, nodes)
    return nodes[-1].outputs[0]


def take_place(old: ir.Node, new: ir.Node) -> None:
    """Put a node where another is, which is dropped: with its one result, its name, and its metadata."""
    value, result = old.outputs[0], new.outputs[0]
    result.name, result.type, result.shape = value.name, value.type, value.shape
    new.metadata_props.update(old.metadata_props)
    put_in_front(old, new)
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    drop(old)


def own_graph(item: ir.Node | ir.Value) -> ir.Graph:
    """Return the graph that a node or a value is in."""
    if not isinstance(item.graph, ir.Graph):
        raise TypeError("a prepared model has no functions")
    return item.graph


def forget_pair_types(model: ir.Model) -> None:
    """Leave out the types and shapes of what pairs compute and of constants, which every reader can infer.

    They are a tenth of a small file. An output of the graph keeps its own, which say what the model returns.
    """
    pairs = [node for node in every_node(model.graph) if node.op_type in (QUANTIZE, DEQUANTIZE)]
    for value in (*model.graph.initializers.values(), *(output for node in pairs for output in node.outputs)):
        if not value.is_graph_output():
            value.type, value.shape = None, None
