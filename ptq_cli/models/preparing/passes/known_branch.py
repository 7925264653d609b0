"""An If whose condition is a constant becomes the branch that it takes.

Requires: the condition is an initializer, as after folding: a constant of the file, an input that is fixed, a
comparison of sizes that are known. Ensures: the nodes of the branch are in the graph that the If was in, with
names that nothing else there has; what they read from around it they still read; the other branch reads
nothing any more. Nested graphs have their turn as well. onnxscript's folding takes branches too, but leaves
names that clash where two branches use the same, so that it is kept from it (``simplify``).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.graph_reading import FreshNames, every_node, nested_graphs
from ptq_cli.models.preparing.rewriting import RewritePass, array_of, drop, take_place

BRANCHES = ("else_branch", "then_branch")  # indexed by the condition


@dataclass(frozen=True)
class Body:
    """The content of a branch."""

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
    """Take the inputs from the nodes of a removed graph, so that it reads no value any more."""
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
    """Values of nodes and of the graphs nested in them."""
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
