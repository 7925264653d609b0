"""What is asked about single values and nodes of a graph, by whoever prepares or places it."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import TensorSpec


def input_at(node: ir.Node, index: int | None) -> ir.Value | None:
    """Return an input of a node, or None where it has no such input or it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def rank_of(value: ir.Value | None) -> int | None:
    """Return how many axes a value has, or None where that is not known."""
    return len(value.shape) if value is not None and value.shape is not None else None


def value_spec(value: ir.Value) -> TensorSpec:
    """Return name, dtype and shape of a graph value; a symbolic or unknown size is None."""
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    sizes = value.shape if value.shape is not None else ()
    return TensorSpec(
        value.name or "", dtype, tuple(size if isinstance(size, int) else None for size in sizes)
    )


def sole_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, or None where several do or it is an output of the graph.

    Edge case:
        A node of a graph nested in the value's is not one to merge anything with: it runs as often as its
        graph does, and a runtime fuses within one graph only.
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


def every_value(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield each value that is fed or computed, in nested graphs too, after what it is computed from."""
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
    for node in graph.all_nodes():
        for inner in nested_graphs(node):
            found = (*around.get(node.name or "", ()), node.name or "")
            around.update((item.name or "", found) for item in inner)
    return around
