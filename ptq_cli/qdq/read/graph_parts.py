"""Parts of a graph as models of their own, and what nodes read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, nested_graphs
from ptq_cli.plan.graph_questions import is_constant


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
