"""Values, nodes and nested graphs of a model, and names that nothing else in a graph has."""

import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import Any, Self

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

    Edge case: Metadata that hold no such table, because ptq did not write them, are an empty one.

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


RESULT = ".output"  # suffix of a node's result, behind the node's name
LONGEST = 48  # characters of a name that others are made of; exporters write hundreds
DIGEST = 8


def short_name(name: str) -> str:
    """Return a name, or its beginning with a digest if it is very long.

    A pair of QuantizeLinear and DequantizeLinear repeats the name of its tensor a dozen times.

    Example:
        >>> short_name("conv1"), len(short_name("model/block/" * 40))
        ('conv1', 48)
    """
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST]
    return f"{name[: LONGEST - DIGEST - 1]}~{digest}"


class FreshNames:
    """Hands out names that no value of a model has.

    A layer may well have a parameter called ``scale``: a constant that took its name would take its place.
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)

    @classmethod
    def of(cls, graph: ir.Graph) -> Self:
        """Return names that are free in a graph and in the graphs nested in it."""
        nodes = list(every_node(graph))
        values = [value for node in nodes for value in (*node.outputs, *node.inputs) if value is not None]
        values += [*graph.inputs, *graph.initializers.values()]
        values += [value for inner in graph.subgraphs() for value in inner.inputs]
        return cls({value.name or "" for value in values} | {node.name or "" for node in nodes})

    def claim(self, wanted: str) -> str:
        """Return ``wanted``, or with a number behind it where that is taken, or a node's result would be."""
        name, count = wanted, 1
        while name in self._taken or f"{name}{RESULT}" in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def tell_apart(graph: ir.Graph) -> None:
    """Give nodes and values of nested graphs names of their own where two branches use the same ones.

    Ensures: names of the main graph, and those that are there once, are as they were.
    """
    nodes = Counter(node.name for node in every_node(graph))
    values = Counter(value.name for value in every_value(graph))
    repeated = {name for name, count in [*nodes.items(), *values.items()] if name and count > 1}
    if repeated:
        _tell_apart(graph, repeated, FreshNames.of(graph))


def _tell_apart(graph: ir.Graph, repeated: Container[str], names: FreshNames) -> None:
    for owner in graph:
        for label, inner in labeled_graphs(owner).items():
            path = f"{owner.name}/{label}/"
            for node in inner:
                if node.name in repeated:
                    node.name = names.claim(f"{path}{node.name}")
            for value in [*inner.inputs, *(value for node in inner for value in node.outputs)]:
                if value.name in repeated:
                    value.name = names.claim(f"{path}{value.name}")
            _tell_apart(inner, repeated, names)
