"""Which layers stay in float so that a model is fastest by the profile of a machine: a minimum cut.

What is placed as a whole is an operator with the activation function that ONNX Runtime merges into it. Units
on one side of the cut are integer, those on the other float. Each pays the time that it takes on its side,
and each tensor that crosses pays for being quantized or dequantized, once.

Source:
    Picard and Ratliff 1975, "Minimum cuts and related problems", Networks 5.
"""

import math
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import onnx_ir as ir

from ptq_cli.core.documents import HIDDEN, FileFormat
from ptq_cli.core.errors import ProfileError
from ptq_cli.models.graph_reading import sole_reader
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target


@dataclass(frozen=True)
class NodeTimes:
    """What a node takes."""

    floating: Annotated[
        float, "Microseconds in the float model; 0 where the runtime merges it into another node."
    ]
    integer: Annotated[float, "Microseconds in the model with everything in integers that can be."]


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """How long each node of a model takes, in float and in integers."""

    FORMAT: ClassVar[FileFormat] = FileFormat(
        name="ptq.profile",
        version=1,
        noun="profile",
        error=ProfileError,
        hint="run ptq bench --operators again on the machine that the model is for",
    )

    model: Annotated[str, "SHA-256 of the float model's file."]
    target: Annotated[str, "The target whose rules decided what can be integer."]
    runtime: Annotated[str, "The runtime and its version."]
    machine: Annotated[str, "The processor, in words; empty if nothing was measured."]
    batch: Annotated[int, "Samples per run."]
    threads: Annotated[int, "Of one operator."]
    floating: Annotated[float, "Microseconds of a run of the two whole models."]
    integer: Annotated[float, "Microseconds of a run of the two whole models."]
    spread: Annotated[
        float,
        "The median run's time over a fast run's, of the model where that is larger; near 1 on a quiet "
        "machine.",
    ]
    seam_fixed: Annotated[
        float, "Microseconds that each tensor costs where integers become floats, or floats integers."
    ]
    seam_element: Annotated[float, "Microseconds for each of its elements."]
    nodes: Annotated[dict[str, NodeTimes], "By the node's name."]
    elements: Annotated[dict[str, int], "How many numbers each tensor has."]
    runtime_operators: Annotated[bool, "Whether that model had operators of the runtime's own."] = False

    @property
    def is_measured(self) -> bool:
        """Whether the times are those of a processor."""
        return bool(self.machine)


MERGING = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Softplus")
OUTSIDE = -1  # the reader of an output
_INTEGER, _FLOAT = "integer", "float"
NEVER = 1e12  # microseconds: more than anything takes
WORTH = 0.98  # of the faster whole model's time that a mix may take: a smaller gain is within the error
_MOST_ROUNDS = 40
LEADING = ("compute", "join", "stored")  # kinds of a target's rules that compute; the others follow them


@dataclass(frozen=True, kw_only=True)
class PlacedUnit:
    """Nodes that are placed together.

    Attributes:
        choices: those of them that are computed in integers unless they are kept in float; without any, the
            unit is in float whatever is chosen.
    """

    nodes: tuple[str, ...]
    choices: tuple[str, ...]
    floating: float
    integer: float


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor between units.

    Attributes:
        source: the index of the unit that makes it; None for an input of the graph, which is float.
        readers: the indices of the units that read it; -1 is the caller, who reads an output as float.
    """

    tensor: str
    source: int | None
    readers: tuple[int, ...]
    elements: int


@dataclass(frozen=True)
class Circuit:
    """The units of a graph and the tensors between them."""

    units: tuple[PlacedUnit, ...]
    edges: tuple[Edge, ...]


def circuit_of(
    graph: ir.Graph,
    quantized: Container[str],
    floating: Mapping[str, float],
    integer: Mapping[str, float],
    elements: Mapping[str, int],
) -> Circuit:
    """Return the units of a float graph with their times.

    ``quantized`` names the nodes that are computed in integers if all that can be are.
    """
    unit_of: dict[ir.Node, int] = {}
    members: list[list[ir.Node]] = []
    for node in graph:
        first = leader(node)
        if first is not None and first in unit_of:
            unit_of[node] = unit_of[first]
            members[unit_of[node]].append(node)
        else:
            unit_of[node] = len(members)
            members.append([node])
    units = []
    for nodes in members:
        names = tuple(node.name or "" for node in nodes)
        units.append(
            PlacedUnit(
                nodes=names,
                choices=tuple(name for name in names if name in quantized),
                floating=math.fsum(floating.get(name, 0.0) for name in names),
                integer=math.fsum(integer.get(name, 0.0) for name in names),
            )
        )
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    edges = [_edge(value, unit_of, elements) for value in values if not is_constant(value)]
    return Circuit(tuple(units), tuple(edge for edge in edges if edge is not None))


def leader(node: ir.Node) -> ir.Node | None:
    """Return the node that this one is placed with: the one whose result it is an activation function of."""
    source = node.inputs[0] if node.inputs else None
    before = source.producer() if source is not None else None
    if node.op_type in _ACTIVATIONS and before is not None and before.op_type in MERGING:
        return (
            before if source is not None and (sole_reader(source) is node or _gates(node, source)) else None
        )
    if node.op_type == "Mul":  # x * sigmoid(x)
        for gate, x in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
            made = gate.producer() if gate is not None else None
            if made is not None and made.op_type in _ACTIVATIONS and made.inputs[0] is x:
                return made
    return None


def _gates(node: ir.Node, source: ir.Value) -> bool:
    """Whether a value is read by an activation function and by the Mul of the two alone."""
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


@dataclass(frozen=True)
class Seam:
    """What a tensor costs where it passes from integers to floats, or back."""

    fixed: float
    element: float

    def cost(self, edge: Edge) -> float:
        """Return the microseconds of a tensor."""
        return self.fixed + self.element * edge.elements


def cheapest(
    circuit: Circuit, seam: Seam, *, integer: Collection[int] = (), floating: Collection[int] = ()
) -> frozenset[int]:
    """Return the units that are computed in integers in the fastest placement.

    Units in ``integer`` must be integer, those in ``floating`` float; those without a choice are anyway.

    Example:
        >>> from ptq_cli.placement.fastest_placement import PlacedUnit
        >>> units = [PlacedUnit(nodes=(n,), choices=(n,), floating=f, integer=i) for n, f, i in
        ...     (("slow", 10.0, 40.0), ("fast", 90.0, 30.0))]
        >>> between = Edge(tensor="t", source=0, readers=(1,), elements=1000)
        >>> sorted(cheapest(Circuit(tuple(units), (between,)), Seam(5.0, 0.001)))
        [1]
        >>> sorted(cheapest(Circuit(tuple(units), (between,)), Seam(50.0, 0.001)))
        [0, 1]
    """
    import networkx  # takes a sixth of a second, and most exports place nothing by time

    graph = networkx.DiGraph()
    graph.add_nodes_from((_INTEGER, _FLOAT))
    for index, unit in enumerate(circuit.units):
        must_float = not unit.choices or index in floating
        graph.add_edge(index, _FLOAT, capacity=NEVER if must_float else unit.integer)
        graph.add_edge(_INTEGER, index, capacity=NEVER if index in integer else unit.floating)
    for edge in circuit.edges:
        source = _FLOAT if edge.source is None else edge.source
        readers = [_FLOAT if reader == OUTSIDE else reader for reader in edge.readers]
        cost = seam.cost(edge)
        # Each pays once for all its readers: through a node that follows the first of them.
        quantized, dequantized = ("quantized", edge.tensor), ("dequantized", edge.tensor)
        graph.add_edge(quantized, source, capacity=cost)
        graph.add_edge(source, dequantized, capacity=cost)
        for reader in readers:
            graph.add_edge(reader, quantized)  # Without a capacity: it is never cut.
            graph.add_edge(dequantized, reader)
    _, (side, _) = networkx.minimum_cut(graph, _INTEGER, _FLOAT)
    return frozenset(node for node in side if isinstance(node, int))


def predicted(circuit: Circuit, seam: Seam, integer: Collection[int]) -> float:
    """Return the microseconds of a placement."""
    units = math.fsum(
        unit.integer if index in integer else unit.floating for index, unit in enumerate(circuit.units)
    )
    return units + math.fsum(seam.cost(edge) for edge in circuit.edges if _crosses(edge, integer))


def _crosses(edge: Edge, integer: Collection[int]) -> bool:
    """Whether a tensor is quantized for an integer reader, or dequantized for a float one."""
    source = edge.source is not None and edge.source in integer
    return any((reader in integer) != source for reader in edge.readers)


@dataclass(frozen=True, kw_only=True)
class FastestPlacement:
    """A placement.

    Attributes:
        in_float: the layers that stay in float although they could be integer, with the reason.
    """

    in_float: Mapping[str, str]
    plan: Plan
    expected: float


def fastest_placement(
    model: ir.Model, plan: Plan, target: Target, profile: MachineProfile
) -> FastestPlacement:
    """Return the placement that takes the least time by a profile.

    In ``plan`` everything is in integers that can be.

    Edge case:
        A layer that is kept in float can keep the next one in float, too
        (docs/decisions/0009-layers-that-stay-float.md). Where that happens, the cheaper of two remedies is
        taken: both in float, or both in integers. What only moves values, or clamps them, follows its
        neighbors. A placement that would quantize a tensor that the calibration did not measure is not taken:
        what reads that tensor stays in float, too.
    """
    circuit, excluded = circuit_of_profile(model, plan, profile), _in_float(model, plan, target)
    seam, leading = Seam(profile.seam_fixed, profile.seam_element), _leading(model, target)
    integer, floating = frozenset[int](), frozenset[int]()
    for _ in range(_MOST_ROUNDS):
        chosen = cheapest(circuit, seam, integer=integer, floating=floating)
        reasons = _reasons(circuit, chosen, leading)
        found = _planned(model, target, {**excluded, **reasons})
        trapped = _led(circuit, chosen - unit_sides(circuit, found), leading)
        unmeasured = _readers(circuit, set(found.measured) - set(plan.measured)) & chosen
        if not trapped and not unmeasured:
            expected = predicted(circuit, seam, unit_sides(circuit, found))
            break
        if unmeasured:
            integer, floating = integer - unmeasured, floating | unmeasured
            continue
        apart = floating | trapped
        together = integer | _before(circuit, trapped, chosen)
        options = (
            [(integer, apart)]
            if together & apart or together == integer
            else [(integer, apart), (together, floating)]
        )
        integer, floating = min(options, key=lambda option: _cost(circuit, seam, *option))
    else:
        expected = math.inf  # No mix was found that the planner makes as it is asked.
    if expected <= WORTH * min(profile.integer, profile.floating):
        return FastestPlacement(in_float=reasons, plan=found, expected=expected)
    if profile.integer <= profile.floating:
        return FastestPlacement(in_float={}, plan=plan, expected=profile.integer)
    reasons = _reasons(circuit, frozenset(), leading)
    found = _planned(model, target, {**excluded, **reasons})
    return FastestPlacement(in_float=reasons, plan=found, expected=profile.floating)


def circuit_of_profile(model: ir.Model, plan: Plan, profile: MachineProfile) -> Circuit:
    """Return the units of a model with the times of a profile."""
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    floating = {name: times.floating for name, times in profile.nodes.items()}
    integer = {name: times.integer for name, times in profile.nodes.items()}
    return circuit_of(model.graph, quantized, floating, integer, profile.elements)


def unit_sides(circuit: Circuit, plan: Plan) -> frozenset[int]:
    """Return the units that a plan computes in integers."""
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    return frozenset(
        index for index, unit in enumerate(circuit.units) if not quantized.isdisjoint(unit.choices)
    )


def _in_float(model: ir.Model, plan: Plan, target: Target) -> dict[str, str]:
    """Return the layers that a plan leaves in float although the target would not, with the reason."""
    quantized = {layer.name for layer in make_plan(model, target).layers if layer.quantized}
    floats = [layer for layer in plan.layers if not layer.quantized]
    return {layer.name: layer.reason for layer in floats if layer.name in quantized}


def _planned(model: ir.Model, target: Target, excluded: Mapping[str, str]) -> Plan:
    return make_plan(model, target, LayerChoices(excluded=excluded), may_be_empty=True)


def _cost(circuit: Circuit, seam: Seam, integer: Collection[int], floating: Collection[int]) -> float:
    return predicted(circuit, seam, cheapest(circuit, seam, integer=integer, floating=floating))


def _before(circuit: Circuit, units: Collection[int], chosen: Collection[int]) -> frozenset[int]:
    """Return the float units with a choice whose results these units read."""
    sources = {edge.source for edge in circuit.edges if set(edge.readers) & set(units)}
    return frozenset(
        source
        for source in sources
        if source is not None and source not in chosen and circuit.units[source].choices
    )


def _readers(circuit: Circuit, tensors: Collection[str]) -> frozenset[int]:
    """Return the units that read one of these tensors."""
    return frozenset(reader for edge in circuit.edges if edge.tensor in tensors for reader in edge.readers)


def _leading(model: ir.Model, target: Target) -> frozenset[str]:
    """Return the names of the nodes that the target computes or joins, and does not only move or clamp."""
    kinds = {name for name, rule in target.op.items() if rule.kind in LEADING}
    return frozenset(node.name or "" for node in model.graph if node.op_type in kinds)


def _led(circuit: Circuit, units: Collection[int], leading: Collection[str]) -> frozenset[int]:
    return frozenset(unit for unit in units if any(name in leading for name in circuit.units[unit].choices))


def _reasons(circuit: Circuit, integer: Collection[int], leading: Collection[str]) -> dict[str, str]:
    reasons = {}
    for index, unit in enumerate(circuit.units):
        alone = unit.floating <= unit.integer
        together = "" if alone else " together with its neighbors, although alone it is not"
        for name in unit.choices if index not in integer else ():
            if name in leading:
                times = f"{unit.floating:.3g} µs of {unit.integer:.3g} µs"
                reasons[name] = f"faster in float here{together}: {times}"
    return reasons


@dataclass(frozen=True, kw_only=True)
class LatencyPreference:
    """What was decided by time."""

    in_float: Annotated[
        Mapping[str, str], "The layers that stay in float although they could be integer, with the reason."
    ]
    expected: Annotated[float, "Microseconds of a run of the quantized model."]
    floating: Annotated[
        float, "Those of the float model, and of the one with everything in integers that can be."
    ]
    integer: Annotated[
        float, "Those of the float model, and of the one with everything in integers that can be."
    ]
    batch: Annotated[int, "What was measured."]
    threads: Annotated[int, "What was measured."]
    source: Annotated[str, "The file of the profile; empty if it was measured on this machine."] = ""
    undecided: Annotated[str, "Why nothing was decided; empty otherwise."] = ""
    elsewhere: Annotated[
        Mapping[str, float],
        "How many times as fast as float everything in integers is expected to be, by kind of processor.",
    ] = field(default_factory=dict)
    profile: Annotated[MachineProfile | None, HIDDEN] = None
