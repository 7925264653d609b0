"""The two operators that everything here inserts, and the constants they read."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import named_alike
from ptq_cli.models.graph_reading import every_node, register_constant
from ptq_cli.models.names import RESULT
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.models.preparing.rewriting import drop


def add_initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Add a constant to the graph, in which no value may have that name, as below."""
    # Not ir.tensor, which asks of every array whether it is a tensor of some other library.
    return register_constant(graph, ir.Tensor(np.asarray(array, order="C"), name=name))


def add_computed(graph: ir.Graph, name: str, shape: tuple[int, ...], make: Callable[[], Array]) -> ir.Value:
    """Add a constant of floats that is computed whenever it is asked for: what it is made of is smaller."""

    def tensor() -> ir.TensorProtocol:
        return ir.tensor(make(), name=name)

    return register_constant(graph, ir.LazyTensor(tensor, ir.DataType.FLOAT, ir.Shape(shape), name=name))


def add_packed(graph: ir.Graph, name: str, array: Array, bits: int = 4) -> ir.Value:
    """Add a constant of integers of 4 bits, or of 2: INT4 where the array is signed, otherwise UINT4."""
    dtype = packed_type(array, bits)
    return register_constant(graph, ir.Tensor(array.astype(dtype.numpy()), dtype=dtype, name=name))


def packed_type(array: Array, bits: int) -> ir.DataType:
    """Return the type of integers of which several lie in a byte."""
    signed = np.issubdtype(array.dtype, np.signedinteger)
    return ir.DataType[f"{'INT' if signed else 'UINT'}{bits}"]


def add_outside(graph: ir.Graph, name: str, tensor: ir.ExternalTensor) -> ir.Value:
    """Add a constant that is in a file already; several may be in the same place of it."""
    return register_constant(graph, named_alike(tensor, name))


def put_in_front(reader: ir.Node, *nodes: ir.Node) -> None:
    """Insert nodes before one that reads them, in that one's graph."""
    if not isinstance(reader.graph, ir.Graph):
        raise TypeError("a prepared model has no functions")
    reader.graph.insert_before(reader, nodes)


def take_place(old: ir.Node, new: ir.Node) -> None:
    """Put a node where another is, which is dropped: with its one result, its name, and its metadata."""
    value, result = old.outputs[0], new.outputs[0]
    result.name, result.type, result.shape = value.name, value.type, value.shape
    new.metadata_props.update(old.metadata_props)
    put_in_front(old, new)
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    drop(old)


def make_cast(source: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    """Return a Cast of ``source``."""
    node = ir.node("Cast", [source], {"to": int(dtype)}, name=name)
    return _typed(node, dtype, source.shape)


def make_gather(table: ir.Value, indices: ir.Value, name: str) -> ir.Node:
    """Return a Gather from a table of rank 1."""
    node = ir.node("Gather", [table, indices], name=name)
    return _typed(node, table.dtype, indices.shape)


def make_add(one: ir.Value, other: ir.Value, name: str) -> ir.Node:
    """Return an Add of ``other``, which broadcasts, to ``one``."""
    return _typed(ir.node("Add", [one, other], name=name), one.dtype, one.shape)


def make_mul(one: ir.Value, other: ir.Value, name: str) -> ir.Node:
    """Return a Mul of ``one`` by ``other``, which broadcasts."""
    return _typed(ir.node("Mul", [one, other], name=name), one.dtype, one.shape)


def _typed(node: ir.Node, dtype: ir.DataType | None, shape: ir.Shape | None) -> ir.Node:
    output = node.outputs[0]
    output.name, output.shape = f"{node.name}{RESULT}", shape
    output.type = ir.TensorType(dtype) if dtype is not None else None
    return node


def make_quantize(
    source: ir.Value, scale: ir.Value, zero_point: ir.Value, name: str, axis: int | None = None
) -> ir.Node:
    """Return a QuantizeLinear of ``source``, per tensor or along ``axis``."""
    attributes = {} if axis is None else {"axis": axis}
    node = ir.node(QUANTIZE, [source, scale, zero_point], attributes, name=name)
    output = node.outputs[0]
    output.name, output.type, output.shape = f"{name}{RESULT}", zero_point.type, source.shape
    return node


def make_dequantize(
    source: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    name: str,
    axis: int | None = None,
    block_size: int | None = None,
) -> ir.Node:
    """Return a DequantizeLinear of ``source``, per tensor, or along ``axis``, or in blocks along it.

    An int32 bias has no zero point: the operator takes it as 0.
    """
    inputs = [source, scale] if zero_point is None else [source, scale, zero_point]
    given = {"axis": axis, "block_size": block_size}
    attributes = {key: value for key, value in given.items() if value is not None}
    node = ir.node(DEQUANTIZE, inputs, attributes, name=name)
    output = node.outputs[0]
    output.name, output.shape = f"{name}{RESULT}", source.shape
    output.type = ir.TensorType(ir.DataType.FLOAT)
    return node


def forget_pair_types(model: ir.Model) -> None:
    """Leave out the types and shapes of what pairs compute and of constants, which every reader can infer.

    They are a tenth of a small file. An output of the graph keeps its own, which say what the model returns.
    """
    pairs = [node for node in every_node(model.graph) if node.op_type in (QUANTIZE, DEQUANTIZE)]
    for value in (*model.graph.initializers.values(), *(output for node in pairs for output in node.outputs)):
        if not value.is_graph_output():
            value.type, value.shape = None, None
