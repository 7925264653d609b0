"""Rewrite passes: what they ask of a graph, how they edit it, and how they run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, every_graph, register_constant, remove_unused

Floats = npt.NDArray[np.floating[Any]]


def array_of(value: ir.Value | None) -> Array | None:
    """Return the array of a constant, or None where a value is computed, fed or absent."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return np.asarray(value.const_value.numpy())


def floats_of(value: ir.Value | None) -> Floats | None:
    """Return the array of a constant of floats that numpy computes with, or None."""
    array = array_of(value)
    return np.asarray(array) if array is not None and array.dtype.kind == "f" else None


def scalar_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant of one element, or None."""
    array = array_of(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes a value if it is one of these operators of ONNX's own."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def is_float32(value: ir.Value | None) -> bool:
    """Tell whether a value is float32. Another width rounds elsewhere, and has fewer kernels."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def operand_beside(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other input of a node of two, or None where both are the same."""
    first, second = node.inputs[0], node.inputs[1]
    if (first is value) == (second is value):
        return None
    return second if first is value else first


def set_constant(node: ir.Node, index: int, array: Array, wanted: str, names: FreshNames) -> None:
    """Give a node an input that is a constant, under the name ``wanted`` if it is a new one.

    A constant that others read too stays as it is for them; the node gets its own.
    """
    old = node.inputs[index] if index < len(node.inputs) else None
    if old is not None and old.is_initializer() and len(old.uses()) == 1 and not old.is_graph_output():
        old.const_value = ir.tensor(array, name=old.name)
        old.dtype, old.shape = old.const_value.dtype, ir.Shape(array.shape)
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, add_constant(node.graph, array, wanted, names))


def add_constant(
    owner: ir.Graph | ir.Function | None, array: Array, wanted: str, names: FreshNames
) -> ir.Value:
    """Return a new initializer of a graph."""
    if not isinstance(owner, ir.Graph):
        raise TypeError("only a graph has initializers")
    return register_constant(owner, ir.tensor(array, name=names.claim(wanted)))


def take_place(value: ir.Value, old: ir.Value, names: FreshNames) -> None:
    """Replace ``old`` by ``value`` for all readers, as an output of the graph under its name too."""
    is_output = old.is_graph_output()
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    if is_output:
        name = old.name
        old.name = names.claim(f"{name}.replaced")
        value.name = name
    if old.shape is not None:
        value.shape, value.type = old.shape, old.type


def drop(node: ir.Node) -> None:
    """Remove a node whose outputs nobody reads."""
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def put_instead(node: ir.Node, root: ir.Node, names: FreshNames) -> None:
    """Replace ``root`` by a new node; what only ``root`` needed is removed later.

    It has the name of ``root`` and its metadata, which tell the layer.
    """
    if not isinstance(root.graph, ir.Graph):
        raise TypeError("only nodes of a graph are replaced")
    old = root.outputs[0]
    node.outputs[0].name = names.claim(old.name or node.op_type)
    node.outputs[0].type, node.outputs[0].shape = old.type, old.shape
    node.name = root.name
    node.metadata_props.update(root.metadata_props)
    root.graph.insert_before(root, node)
    take_place(node.outputs[0], old, names)
    drop(root)


def put_before(root: ir.Node, node: ir.Node, names: FreshNames) -> ir.Value:
    """Insert a node in front of ``root``, which is about to go, and return what it computes.

    It is named for ``root`` and has its metadata, which tell the layer; shapes are inferred later.
    """
    if not isinstance(root.graph, ir.Graph):
        raise TypeError("only nodes of a graph are replaced")
    node.name = names.claim(f"{root.name or root.op_type}/{node.op_type}")
    node.outputs[0].name = names.claim(f"{node.name}.output")
    node.outputs[0].type = root.outputs[0].type
    node.metadata_props.update(root.metadata_props)
    root.graph.insert_before(root, node)
    return node.outputs[0]


_MOST_ROUNDS = 10  # a fold makes room for the next; no real chain is longer
Apply = Callable[[ir.Graph, FreshNames], int]


@dataclass(frozen=True)
class RewritePass:
    """A rewrite of one graph: the main graph, or one that is nested in it.

    Attributes:
        name: a word or two, for messages and tests.
        effect: what it does, for the table of ``ptq export --float``.
        apply: rewrites a graph and returns how often it did; names that are free come with it.
        opset: oldest opset that has the operators which it writes; 0 where it writes no new ones.
    """

    name: str
    effect: str
    apply: Apply
    opset: int = 0


def each_node(rewrite: Callable[[ir.Node, FreshNames], bool], *op_types: str) -> Apply:
    """Return a pass over the nodes of these types, which counts those that were rewritten."""

    def apply(graph: ir.Graph, names: FreshNames) -> int:
        nodes = [node for node in graph if node.op_type in op_types and node.domain == ""]
        return sum(rewrite(node, names) for node in nodes)

    return apply


def run_passes(
    model: ir.Model, passes: Sequence[RewritePass], *, at_any_opset: bool = False
) -> dict[str, int]:
    """Run passes until none finds anything, and return how often each was applied, by name.

    Requires: constants are initializers of the main graph. Ensures: they still are, and nothing is left that
    no output needs. Passes whose operators the model's opset lacks run with ``at_any_opset`` alone, to see
    what a newer one would be good for.
    """
    times = {item.name: 0 for item in passes}
    opset = model.opset_imports.get("", 0)
    usable = [item for item in passes if at_any_opset or opset >= item.opset]
    for _ in range(_MOST_ROUNDS):
        names = FreshNames.of(model.graph)
        found: dict[str, int] = {}
        graphs = list(every_graph(model.graph))
        for item in usable:
            found[item.name] = sum(item.apply(graph, names) for graph in graphs)
            if found[item.name]:  # It may have taken nested graphs away.
                graphs = list(every_graph(model.graph))
        if not any(found.values()):
            break
        for name, count in found.items():
            times[name] += count
        remove_unused(model)
    # A pass gives a constant to the graph that it rewrites; here all of them are the main graph's.
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    return times
