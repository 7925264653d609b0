"""Parts of a graph as models of their own, and what nodes read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.graph_reading import every_node, nested_graphs
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.runtime.session import Session


def part_of(
    model: ir.Model, nodes: Sequence[ir.Node], inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]
) -> ir.Model:
    """Return nodes of a main graph as a model, with the constants that they read; tensors are shared."""
    constants = dict.fromkeys(value for node in nodes for value in values_read(node) if is_constant(value))
    view = ir.GraphView(
        tuple(inputs),
        tuple(outputs),
        nodes=nodes,
        initializers=tuple(constants),
        opset_imports=model.graph.opset_imports,
        name="part",
    )
    return ir.Model(view.clone(), ir_version=model.ir_version, functions=tuple(model.functions.values()))


def readers_by_value(graph: ir.Graph) -> Mapping[ir.Value, Sequence[ir.Node]]:
    """Return the nodes that read each value, in order; a node reads what graphs inside it read."""
    readers: dict[ir.Value, dict[ir.Node, None]] = {}
    for node in graph:
        for value in values_read(node):
            readers.setdefault(value, {})[node] = None
    return {value: tuple(nodes) for value, nodes in readers.items()}


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, those that graphs inside it take from around it among them."""
    yield from (value for value in node.inputs if value is not None)
    inside = (value for graph in nested_graphs(node) for inner in every_node(graph) for value in inner.inputs)
    yield from (value for value in inside if value is not None and value.graph is node.graph)


def computed_integers(
    model: ir.Model, nodes: Sequence[ir.Node], value: ir.Value, inputs: Mapping[ir.Value, Array]
) -> Array:
    """Return a value as int32 that ONNX Runtime computes by some nodes from constants and ``inputs``."""
    if not nodes:
        with mapped(value) as array:
            return array.astype(np.int32)
    part = part_of(model, nodes, inputs, ())
    output_as_int32(part, value.name)
    feeds = {
        item.name or "": array.astype(item.dtype.numpy() if item.dtype is not None else np.float32)
        for item, array in inputs.items()
    }
    return Session(serialize(part), threads=1, optimize=False).run(feeds)[0]


def output_as_int32(part: ir.Model, name: str | None) -> None:
    """Add an output: what is read may be an initializer, which cannot be one, but a Cast of it can."""
    names = {item.name: item for node in part.graph for item in (*node.inputs, *node.outputs) if item}
    cast = ir.node("Cast", [names[name]], {"to": ir.DataType.INT32})
    part.graph.append(cast)
    part.graph.outputs.append(cast.outputs[0])
