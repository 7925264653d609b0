"""Values, nodes and nested graphs of a model, as preparation, plan and placement ask for them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.core.tensors import TensorSpec


def input_at(node: ir.Node, index: int | None) -> ir.Value | None:
    """Return an input of a node, or None where it has no such input or it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def rank_of(value: ir.Value | None) -> int | None:
    """Return how many axes a value has, or None where that is not known."""
    return len(value.shape) if value is not None and value.shape is not None else None


def constant_shape(value: ir.Value | None) -> tuple[int, ...]:
    """Return the shape of a constant; that of what is computed or left out is empty."""
    return (
        tuple(value.const_value.shape.numpy()) if value is not None and value.const_value is not None else ()
    )


def register_constant(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a constant to a graph, in which no value has its name."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def value_spec(value: ir.Value) -> TensorSpec:
    """Return name, dtype and shape of a graph value; a symbolic or unknown size is None."""
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    sizes = value.shape if value.shape is not None else ()
    return TensorSpec(
        value.name or "", dtype, tuple(size if isinstance(size, int) else None for size in sizes)
    )


def sole_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, or None where several do or it is an output of the graph.

    A node of a graph nested in the value's is not one to merge anything with: it runs as often as its graph
    does, and a runtime fuses within one graph only.
    """
    uses = list(value.uses())
    is_sole = len(uses) == 1 and not value.is_graph_output() and uses[0].node.graph is value.graph
    return uses[0].node if is_sole else None


def nested_graphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs inside a node, as an If has; not those inside their nodes."""
    return list(labeled_graphs(node).values())


def labeled_graphs(node: ir.Node) -> dict[str, ir.Graph]:
    """Return the graphs inside a node by what the node calls them, such as ``then_branch``."""
    graphs: dict[str, ir.Graph] = {}
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs[name] = attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs |= {f"{name}.{index}": graph for index, graph in enumerate(attribute.as_graphs())}
    return graphs


def every_node(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Yield each node, those of nested graphs after the node that has them.

    onnx_ir's ``all_nodes`` yields the same, and takes five times as long.
    """
    for node in graph:
        yield node
        if node.attributes:
            for inner in nested_graphs(node):
                yield from every_node(inner)


def every_graph(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield a graph and those nested in it, each before those inside its nodes."""
    yield graph
    for node in graph:
        if node.attributes:
            for inner in nested_graphs(node):
                yield from every_graph(inner)


def every_value(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield each fed or computed value, in nested graphs too, after its operands."""
    yield from graph.inputs
    for node in graph:
        for inner in nested_graphs(node):
            yield from every_value(inner)
        yield from node.outputs


def nested_values(graph: ir.Graph) -> frozenset[str]:
    """Return the names of the values that nested graphs compute or are fed with."""
    return frozenset(value.name or "" for value in every_value(graph) if value.graph is not graph)


def is_nested(value: ir.Value) -> bool:
    """Return whether a value is one of a nested graph: only a model's main graph names the opsets."""
    return isinstance(value.graph, ir.Graph) and not value.graph.opset_imports


def names_around(graph: ir.Graph) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the nodes that each node of a nested graph is inside of, by the node's name."""
    around: dict[str, tuple[str, ...]] = {}
    for node in every_node(graph):
        for inner in nested_graphs(node):
            found = (*around.get(node.name or "", ()), node.name or "")
            around.update((item.name or "", found) for item in inner)
    return around


def remove_unused(model: ir.Model) -> None:
    """Remove the nodes whose results nobody reads.

    onnx_ir removes a node with the graphs inside it, and the nodes of those still count as readers: what only
    they read would stay, and what they read beside one other node would have two readers.
    """
    passes.RemoveUnusedNodesPass()(model)
    while _forget_removed(model):
        passes.RemoveUnusedNodesPass()(model)


def _forget_removed(model: ir.Model) -> int:
    graphs = set(every_graph(model.graph))
    values = [*every_value(model.graph), *model.graph.initializers.values()]
    removed = [(node, index) for value in values for node, index in value.uses() if node.graph not in graphs]
    for node, index in removed:
        node.replace_input_with(index, None)
    return len(removed)


def noted_table(model: ir.Model, key: str) -> dict[str, Any]:
    """Return the table that a model's metadata have under a key, as JSON.

    Edge case:
        Metadata that hold no such table, because ptq did not write them, are an empty one.

    Example:
        >>> model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
        >>> model.metadata_props["a"], model.metadata_props["b"] = '{"x": 1}', "3"
        >>> noted_table(model, "a"), noted_table(model, "b"), noted_table(model, "c")
        ({'x': 1}, {}, {})
    """
    try:
        found = json.loads(model.metadata_props.get(key, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
