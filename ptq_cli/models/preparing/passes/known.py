"""An If whose condition is a constant becomes the branch that it takes.

Requires: the condition is an initializer, as after folding: a constant of the file, an input that is fixed, a
comparison of sizes that are known. Ensures: the nodes of the branch are in the graph that the If was in, with
names that nothing else there has; what they read from around it they still read; the other branch reads
nothing any more. Nested graphs have their turn as well. onnxscript's folding takes branches too, but leaves
names that clash where two branches use the same, so that it is kept from it (``simplify``).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, every_node, input_at, nested_graphs, rank_of
from ptq_cli.models.preparing.rewriting import (
    RewritePass,
    add_constant,
    array_of,
    drop,
    each_node,
    made_by,
    put_before,
    take_place,
)

BRANCHES = ("else_branch", "then_branch")
"""By the condition."""


@dataclass(frozen=True)
class Body:
    """What was in a branch."""

    nodes: list[ir.Node]
    outputs: list[ir.Value]
    initializers: list[ir.Value]


def take_known_branches(graph: ir.Graph, names: FreshNames) -> int:
    """Put the branch that is taken in the place of each If of a constant condition, and return how many."""
    known = [
        node for node in graph if node.op_type == "If" and node.domain == "" and _condition(node) is not None
    ]
    bodies = [_emptied(node) for node in known]
    free = FreshNames.of(graph) if known else names
    free_nodes = FreshNames({node.name or "" for node in every_node(graph)})
    for node, body in zip(known, bodies, strict=True):
        _claim_names(body, free, free_nodes)
        graph.insert_before(node, body.nodes)
        for value in body.initializers:
            graph.register_initializer(value)
        for output, inner in zip(node.outputs, _own_outputs(body, node, graph, free), strict=True):
            inner.type = inner.type or output.type
            output.shape = None  # That of both branches.
            take_place(inner, output, free)
        drop(node)
    return len(known)


KNOWN_BRANCH = RewritePass("known_branch", "If of a constant condition into its branch", take_known_branches)


def _condition(node: ir.Node) -> bool | None:
    array = array_of(node.inputs[0])
    has_both = all(name in node.attributes for name in BRANCHES)
    return bool(array.reshape(-1)[0]) if array is not None and array.size == 1 and has_both else None


def _emptied(node: ir.Node) -> Body:
    taken = bool(_condition(node))
    _forget(node.attributes[BRANCHES[not taken]].as_graph())
    graph = node.attributes[BRANCHES[taken]].as_graph()
    body = Body(list(graph), list(graph.outputs), list(graph.initializers.values()))
    graph.outputs.clear()
    graph.remove(body.nodes)
    graph.initializers.clear()
    return body


def _forget(graph: ir.Graph) -> None:
    """Let a graph that goes read nothing, so that nobody counts it among the readers of a value."""
    for node in graph:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        for nested in nested_graphs(node):
            _forget(nested)
    graph.outputs.clear()
    graph.remove(list(graph))


def _claim_names(body: Body, free: FreshNames, free_nodes: FreshNames) -> None:
    for value in (*body.initializers, *_values(body.nodes)):
        if value.name:
            value.name = free.claim(value.name)
    for node in _with_nested(body.nodes):
        node.name = free_nodes.claim(node.name or node.op_type)


def _with_nested(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    return [
        item for node in nodes for item in (node, *_with_nested(n for g in nested_graphs(node) for n in g))
    ]


def _values(nodes: list[ir.Node]) -> list[ir.Value]:
    """Return what nodes compute, and what the graphs nested in them compute, take and hold."""
    found = _with_nested(nodes)
    graphs = [graph for node in found for graph in nested_graphs(node)]
    held = [value for graph in graphs for value in (*graph.inputs, *graph.initializers.values())]
    return list(dict.fromkeys([*(value for node in found for value in node.outputs), *held]))


def _own_outputs(body: Body, node: ir.Node, graph: ir.Graph, free: FreshNames) -> list[ir.Value]:
    """Return a value of its own for each output: a branch may hand on what it reads, or one value twice."""
    computed = {value for item in body.nodes for value in item.outputs}
    found = []
    for value in body.outputs:
        if value in computed:
            computed.remove(value)
            found.append(value)
            continue
        same = ir.node("Identity", [value], name=free.claim(f"{node.name or 'If'}/Identity"))
        same.outputs[0].name = free.claim(f"{value.name}.taken")
        same.outputs[0].type, same.outputs[0].shape = value.type, value.shape
        graph.insert_before(node, same)
        found.append(same.outputs[0])
    return found


# Pad and Resize that name their axes are written for all axes.
#
# Requires: opset 18, where both may name axes; the rank is known. Ensures: what is padded or resized is the
# same; a Resize that keeps an aspect ratio of some axes stays. ONNX Runtime moves its transposes of integer
# convolutions past both operators as if all axes were meant, and the model fails as it runs.


PADS, PAD_AXES = 1, 3
ROI, SCALES, SIZES = 1, 2, 3


def _pad(node: ir.Node, names: FreshNames) -> bool:
    rank, named = rank_of(node.inputs[0]), array_of(input_at(node, PAD_AXES))
    if rank is None or named is None:
        return False
    axes = [int(axis) % rank for axis in named]
    places = np.array([*axes, *(axis + rank for axis in axes)])
    _spread(node, PADS, np.zeros(2 * rank, np.int64), places, names)
    node.resize_inputs(PAD_AXES)
    return True


def _resize(node: ir.Node, names: FreshNames) -> bool:
    named, rank = node.attributes.get("axes"), rank_of(node.inputs[0])
    policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if named is None or rank is None or policy != "stretch":
        return False
    axes = np.array([axis % rank for axis in named.as_ints()])
    if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        whole = np.repeat(np.array([0, 1], np.float32), rank)
        _spread(node, ROI, whole, np.concatenate([axes, axes + rank]), names)
    _spread(node, SCALES, np.ones(rank, np.float32), axes, names)
    if input_at(node, SIZES) is not None:
        shape = put_before(node, ir.Node("", "Shape", [node.inputs[0]]), names)
        shape.type = ir.TensorType(ir.DataType.INT64)
        _spread(node, SIZES, shape, axes, names)
    del node.attributes["axes"]
    return True


NAMED_AXES = RewritePass(
    "named_axes",
    "Pad or Resize of some axes into one of all",
    each_node(lambda node, names: (_pad if node.op_type == "Pad" else _resize)(node, names), "Pad", "Resize"),
    opset=18,
)


def _spread(node: ir.Node, index: int, whole: Array | ir.Value, places: Array, names: FreshNames) -> None:
    """Put what a node has for some places into the whole, and give it that instead."""
    given = input_at(node, index)
    known = array_of(given)
    if given is None or (known is not None and known.size == 0):
        return
    if known is not None and not isinstance(whole, ir.Value):
        array = whole.astype(known.dtype)
        array[places] = known
        node.replace_input_with(index, add_constant(node.graph, array, given.name or "axes", names))
        return
    indices = add_constant(node.graph, places.astype(np.int64), "axes", names)
    if not isinstance(whole, ir.Value):
        whole = add_constant(node.graph, whole, "whole", names)
    spread = put_before(node, ir.Node("", "ScatterElements", [whole, indices, given]), names)
    spread.type = given.type
    node.replace_input_with(index, spread)


# An AveragePool that says that it is not dilated says nothing of it.
#
# Requires: opset 19, where it may say so. Ensures: it has no ``dilations`` where all are 1. ONNX Runtime's
# integer AveragePool has no such attribute, and refuses it whatever it is.


def _drop_dilations(node: ir.Node, names: FreshNames) -> bool:  # noqa: ARG001 - a rewrite's signature
    if set(node.attributes.get_ints("dilations", ())) != {1}:
        return False
    del node.attributes["dilations"]
    return True


UNIT_DILATIONS = RewritePass(
    "unit_dilations",
    "AveragePool with dilations of 1 into one without",
    each_node(_drop_dilations, "AveragePool"),
    opset=19,
)


# A Cast to a wider type and back.
#
# Requires: each value of the narrow type is one of the wide type. Ensures: readers read what went in. A
# Cast to a narrower type and back rounds, and stays. Dropout, Identity and a Cast to the type that there is
# are removed by onnxscript's rules and onnx_ir's passes (``simplify``).


FLOAT, FLOAT16, DOUBLE = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE
INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64
WIDER = {
    FLOAT: {DOUBLE},
    FLOAT16: {FLOAT, DOUBLE},
    ir.DataType.BFLOAT16: {FLOAT, DOUBLE},
    INT32: {INT64, DOUBLE},
    ir.DataType.BOOL: {INT32, INT64, FLOAT, FLOAT16, DOUBLE},
}


def _drop_cast(node: ir.Node, names: FreshNames) -> bool:  # noqa: ARG001 - a rewrite's signature
    inner = made_by(node.inputs[0], "Cast")
    source = inner.inputs[0] if inner is not None else None
    # An output of the graph keeps its name, which what goes in may not take: it may be an input.
    if inner is None or source is None or source.dtype is None or node.outputs[0].is_graph_output():
        return False
    wide = ir.DataType(inner.attributes.get_int("to", 0))
    if node.attributes.get_int("to", 0) != source.dtype or wide not in WIDER.get(source.dtype, ()):
        return False
    ir.convenience.replace_all_uses_with(node.outputs[0], source)
    drop(node)
    return True


CASTS = RewritePass("cast", "Cast to a wider type and back", each_node(_drop_cast, "Cast"))
