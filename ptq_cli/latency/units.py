"""What is placed as a whole: an operator with the activation function that ONNX Runtime merges into it."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import sole_reader
from ptq_cli.plan.questions.graph_questions import is_constant

MERGING = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Softplus")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Nodes that are placed together.

    Attributes:
        nodes: their names, in graph order.
        choices: those of them that are computed in integers unless they are kept in float; without any, the
            unit is in float whatever is chosen.
        floating: microseconds in float.
        integer: microseconds in integers.
    """

    nodes: tuple[str, ...]
    choices: tuple[str, ...]
    floating: float
    integer: float


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor between units.

    Attributes:
        tensor: its name.
        source: the index of the unit that makes it; None for an input of the graph, which is float.
        readers: the indices of the units that read it; -1 is the caller, who reads an output as float.
        elements: how many numbers it has.
    """

    tensor: str
    source: int | None
    readers: tuple[int, ...]
    elements: int


@dataclass(frozen=True)
class Circuit:
    """The units of a graph and the tensors between them."""

    units: tuple[Unit, ...]
    edges: tuple[Edge, ...]


OUTSIDE = -1


def circuit_of(
    graph: ir.Graph,
    quantized: Container[str],
    floating: Mapping[str, float],
    integer: Mapping[str, float],
    elements: Mapping[str, int],
) -> Circuit:
    """Return the units of a float graph with their times.

    Args:
        graph: the float graph.
        quantized: names of the nodes that are computed in integers if all that can be are.
        floating: microseconds of each node in the float model.
        integer: microseconds of each node of the float graph in the quantized model.
        elements: how many numbers each tensor has.
    """
    unit_of: dict[ir.Node, int] = {}
    members: list[list[ir.Node]] = []
    for node in graph:
        leader = _leader(node)
        if leader is not None and leader in unit_of:
            unit_of[node] = unit_of[leader]
            members[unit_of[node]].append(node)
        else:
            unit_of[node] = len(members)
            members.append([node])
    units = tuple(_unit(nodes, quantized, floating, integer) for nodes in members)
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    edges = [_edge(value, unit_of, elements) for value in values if not is_constant(value)]
    return Circuit(units, tuple(edge for edge in edges if edge is not None))


def _unit(
    nodes: Sequence[ir.Node],
    quantized: Container[str],
    floating: Mapping[str, float],
    integer: Mapping[str, float],
) -> Unit:
    names = tuple(node.name or "" for node in nodes)
    return Unit(
        nodes=names,
        choices=tuple(name for name in names if name in quantized),
        floating=sum(floating.get(name, 0.0) for name in names),
        integer=sum(integer.get(name, 0.0) for name in names),
    )


def _leader(node: ir.Node) -> ir.Node | None:
    """Return the node that this one is placed with: the one whose result it is an activation function of."""
    source = node.inputs[0] if node.inputs else None
    before = source.producer() if source is not None else None
    if node.op_type in ACTIVATIONS and before is not None and before.op_type in MERGING:
        return (
            before if source is not None and (sole_reader(source) is node or _gates(node, source)) else None
        )
    if node.op_type == "Mul":  # x * sigmoid(x)
        for gate, x in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            made = gate.producer() if gate is not None else None
            if made is not None and made.op_type in ACTIVATIONS and made.inputs[0] is x:
                return made
    return None


def _gates(node: ir.Node, source: ir.Value) -> bool:
    """Return whether a value is read by an activation function and by the Mul of the two alone."""
    product = sole_reader(node.outputs[0])
    readers = {reader for reader, _ in source.uses()}
    return product is not None and product.op_type == "Mul" and readers == {node, product}


def _edge(value: ir.Value, unit_of: Mapping[ir.Node, int], elements: Mapping[str, int]) -> Edge | None:
    producer = value.producer()
    source = unit_of[producer] if producer is not None else None
    readers = {unit_of[reader] for reader, _ in value.uses() if reader in unit_of}
    if value.is_graph_output() or any(reader not in unit_of for reader, _ in value.uses()):
        readers.add(OUTSIDE)  # A nested graph reads floats, too.
    readers.discard(source)
    if not readers:
        return None
    name = value.name or ""
    return Edge(tensor=name, source=source, readers=tuple(sorted(readers)), elements=elements.get(name, 0))
