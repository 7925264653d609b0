"""What each layer takes in float and in integers, by a table that no machine changes: measured kernels.

A kernel takes a fixed time, and more for each product, element that it reads, element that it returns, and
piece of its input that a Conv copies together. The table beside this file has these for each class of
kernels, in float and in integers, measured with one thread by ``python -m benchmarks.kernel_costs``.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import fsum, prod  # From Python 3.12 on, sum() rounds otherwise than before.
from pathlib import Path

import onnx_ir as ir

from ptq_cli.core.read_files import parse_toml
from ptq_cli.models.graph_reading import constant_shape, input_at, sole_reader
from ptq_cli.placement.fastest_placement import (
    Circuit,
    Edge,
    MachineProfile,
    NodeTimes,
    Seam,
    circuit_of_profile,
    fastest_placement,
    leader,
    predicted,
    unit_sides,
)
from ptq_cli.plan.cost_benefit import COSTS, MICROSECONDS_OF_ONE
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.multiply_accumulates import Shape, bind_shapes, multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target

TABLE = Path(__file__).with_suffix(".toml")
FEW_ROWS = 4  # of a matrix, up to which its products take the time that reading the weight takes
WIDE = 4  # channels that fast integer kernels of a Conv want a multiple of
FEWEST_OUTPUTS = 16  # and the fewest that it makes
DEPTHWISE_WIDE = 16  # and those of a depthwise Conv
LEAST_SPEED = 0.9  # of float's: what integers that are faster elsewhere may have on one kind of processor
_LEAST_TIME = 1e-3  # microseconds, of a graph none of whose operators is in the table
MOST_PLACED = 5000  # nodes of a graph that is placed: the cut takes minutes for more
TIME_REASON = "computes in float: it is faster so"


@dataclass(frozen=True)
class KernelCosts:
    """The table for processors with an instruction set."""

    name: str
    seam: tuple[float, float]
    floating: Mapping[str, Sequence[float]]
    integer: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class KernelWork:
    """What a node computes: its class, products, and elements that it reads and returns.

    Attributes:
        pieces: of a Conv: the channels of a group at one place of the kernel, for each place of the result.
        is_known: false where sizes that the products depend on are not.
    """

    kind: str
    products: int
    read: int
    made: int
    pieces: int = 0
    is_known: bool = True

    @property
    def terms(self) -> tuple[float, ...]:
        """What the costs of a class are multiplied with."""
        return (1.0, self.products, self.read, self.made, self.pieces)

    def time(self, table: Mapping[str, Sequence[float]]) -> float | None:
        """Return its microseconds by a table; None if that does not have its class."""
        found = table.get(self.kind)
        if found is None:
            return None
        return fsum(cost * size for cost, size in zip(found, self.terms, strict=True))


@cache
def known_costs() -> tuple[KernelCosts, ...]:
    """Return the tables of all instruction sets that are known."""
    found = parse_toml(TABLE.read_text("utf-8"))
    shared = found["floating"]
    return tuple(
        KernelCosts(
            name=name,
            seam=(own["seam"][0], own["seam"][1]),
            floating=shared,
            integer={kind: _scaled(costs, own["products"]) for kind, costs in found["integer"].items()},
        )
        for name, own in found["processors"].items()
    )


def _scaled(costs: Sequence[float], products: float) -> tuple[float, ...]:
    fixed, product, *elements = costs
    return (fixed, product * products, *elements)


def _unmeasured(kinds: Iterable[str]) -> KernelCosts:
    """The table for a runtime whose kernels were not measured: integers halve the time of each product."""
    products = dict.fromkeys(kinds, MICROSECONDS_OF_ONE)
    return KernelCosts(
        name="",
        seam=(COSTS.per_node * MICROSECONDS_OF_ONE, COSTS.per_element * MICROSECONDS_OF_ONE),
        floating={kind: (0.0, 2.0 * product, 0.0, 0.0, 0.0) for kind, product in products.items()},
        integer={kind: (0.0, product, 0.0, 0.0, 0.0) for kind, product in products.items()},
    )


def work_of(
    model: ir.Model, shapes: Mapping[str, Shape], products: Mapping[str, int | None]
) -> dict[str, KernelWork]:
    """Return what each node of the main graph computes, by its name."""
    found = {}
    for node in model.graph:
        counted = products.get(node.name or "")
        count = counted or 0
        found[node.name or ""] = KernelWork(
            kind=kernel_class(node, shapes),
            products=count,
            is_known=counted is not None,
            read=sum(_elements(value, shapes) for value in node.inputs if value and not is_constant(value)),
            made=sum(_elements(value, shapes) for value in node.outputs),
            pieces=count // max(1, prod(constant_shape(input_at(node, 1))[:2]))
            if node.op_type == "Conv"
            else 0,
        )
    return found


def _elements(value: ir.Value, shapes: Mapping[str, Shape]) -> int:
    shape = shapes.get(value.name or "", (None,))
    return prod(size for size in shape if size is not None) if None not in shape else 0


def kernel_class(node: ir.Node, shapes: Mapping[str, Shape]) -> str:
    """Return the class of kernels that compute a node: its operator, and what decides how fast that is."""
    if leader(node) is not None:
        return f"{node.op_type} merged"
    weight = input_at(node, 1)
    if node.op_type == "Conv" and weight is not None:
        return _conv_class(node, constant_shape(weight))
    if node.op_type in ("Gemm", "MatMul") and weight is not None:
        if not is_constant(weight):
            return "MatMul of activations"
        shape = shapes.get(node.outputs[0].name or "", ())
        rows = prod(size or 1 for size in shape[:-1])
        return "MatMul of few rows" if rows <= FEW_ROWS else "MatMul"
    if node.op_type == "Add" and any(map(_is_summed, node.inputs)):
        return "Add behind Conv"
    return node.op_type


def _is_summed(value: ir.Value | None) -> bool:
    """Tell whether a Conv makes a value for its one reader, an Add that ONNX Runtime merges into it."""
    producer = value.producer() if value is not None else None
    if value is None or producer is None or producer.op_type != "Conv":
        return False
    return sole_reader(value) is not None


def _conv_class(node: ir.Node, shape: Sequence[int]) -> str:
    if len(shape) < 3:
        return "Conv"
    groups, (outputs, inputs) = node.attributes.get_int("group", 1), shape[:2]
    if groups > 1 and inputs == 1:
        return "Conv depthwise" if outputs % DEPTHWISE_WIDE == 0 else "Conv depthwise odd"
    if groups > 1:
        return "Conv grouped"
    if outputs < WIDE:
        return "Conv single"
    if outputs < FEWEST_OUTPUTS:
        return "Conv narrow"
    return "Conv" if inputs % WIDE == 0 and outputs % WIDE == 0 else "Conv odd"


def expected_times(
    model: ir.Model,
    plan: Plan,
    costs: KernelCosts,
    work: Mapping[str, KernelWork],
    elements: Mapping[str, int],
) -> "ExpectedTimes":
    """Return the times that a model is expected to take on processors with an instruction set.

    In ``plan`` everything is in integers that can be; ``elements`` are how many numbers each tensor has.
    """
    quantized = {layer.name for layer in plan.layers if layer.quantized}
    nodes = {}
    for name, item in work.items():
        floating = item.time(costs.floating) or 0.0
        integer = item.time(costs.integer) if name in quantized else None
        nodes[name] = NodeTimes(floating, floating if integer is None else integer)
    profile = MachineProfile(
        model="",
        target=plan.target,
        runtime="",
        machine=costs.name,
        batch=1,
        threads=1,
        floating=fsum(item.floating for item in nodes.values()),
        integer=0.0,
        spread=1.0,
        seam_fixed=costs.seam[0],
        seam_element=costs.seam[1],
        nodes=nodes,
        elements=dict(elements),
    )
    found = ExpectedTimes(model, plan, profile)
    found.profile = replace(profile, integer=found.time(plan))
    return found


class ExpectedTimes:
    """The time that placements of a model are expected to take by a profile.

    In ``plan`` everything is in integers that can be.
    """

    def __init__(self, model: ir.Model, plan: Plan, profile: MachineProfile) -> None:
        self.profile = profile
        self._circuit = circuit_of_profile(model, plan, profile)
        self._seam = Seam(profile.seam_fixed, profile.seam_element)

    def time(self, plan: Plan) -> float:
        """Return the microseconds of a plan."""
        found = predicted(self._circuit, self._seam, unit_sides(self._circuit, plan))
        return max(found, _LEAST_TIME)

    def more_in_float(self, integer: frozenset[str]) -> dict[str, float]:
        """Return the share of its time that each of a model's integer layers takes more in float alone."""
        sides = [not integer.isdisjoint(unit.nodes) for unit in self._circuit.units]
        units = frozenset(index for index, is_integer in enumerate(sides) if is_integer)
        whole = max(predicted(self._circuit, self._seam, units), _LEAST_TIME)
        around: dict[int, list[Edge]] = {}
        for edge in self._circuit.edges:
            for index in units.intersection((edge.source, *edge.readers)):
                around.setdefault(index, []).append(edge)
        found = dict[str, float]()
        for index in units:
            # Only it and the tensors around it take another time.
            unit, own = self._circuit.units[index], Circuit((), tuple(around.get(index, ())))
            before, after = (predicted(own, self._seam, sides) for sides in (units, units - {index}))
            more = unit.floating - unit.integer + after - before
            found |= dict.fromkeys(unit.nodes, more / whole)
        return found


class KernelTimes:
    """What placements of a model take by the table, on processors of each kind and in the mean.

    What another runtime than ONNX Runtime takes is not known, but that work in integers saves time.
    """

    def __init__(
        self, model: ir.Model, plan: Plan, target: Target, sizes: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._model, self._plan, self._target = model, plan, target
        shapes = bind_shapes(model, sizes).shapes
        work = work_of(model, shapes, multiply_accumulates(model, sizes).counts)
        elements = {name: prod(shape) for name, shape in shapes.items() if None not in shape}  # type: ignore[arg-type]
        kinds = (
            known_costs()
            if target.runtime == ONNXRUNTIME
            else (_unmeasured({item.kind for item in work.values()}),)
        )
        self._each = {costs.name: expected_times(model, plan, costs, work, elements) for costs in kinds}
        self._mean = expected_times(model, plan, _mean(kinds), work, elements)
        self.mean = self._mean.profile
        # What an If computes, and products of unknown sizes, are not in the table.
        has_all = all(site.node in work and work[site.node].is_known for site in plan.weights)
        self._is_known = has_all and self.mean.is_measured

    def speeds(self, plan: Plan) -> dict[str, float]:
        """Return how many times as fast as float a plan is, by the instruction set; empty if not known."""
        if not self._is_known:
            return {}
        return {name: found.profile.floating / found.time(plan) for name, found in self._each.items()}

    def more_in_float(self, integer: Collection[str]) -> dict[str, float]:
        """Return the share of its time that each of a model's integer layers takes more in float alone.

        Processors of each kind count alike. Empty if that is not known.
        """
        is_placed = self._is_known and len(self._model.graph) <= MOST_PLACED
        return self._mean.more_in_float(frozenset(integer)) if is_placed else {}

    def in_float(self) -> dict[str, str]:
        """Return the layers that are better in float, with the reason, if integers make a model slower.

        Processors of each kind count alike: a layer that is slower on one and faster on another follows the
        one where the difference is larger.
        """
        speeds = self.speeds(self._plan).values()
        is_fast = prod(speeds) >= 1.0 and min(speeds, default=1.0) >= LEAST_SPEED
        if is_fast or len(self._model.graph) > MOST_PLACED:
            return {}
        found = fastest_placement(self._model, self._plan, self._target, self.mean)
        return dict.fromkeys(found.in_float, TIME_REASON)


def _mean(kinds: Sequence[KernelCosts]) -> KernelCosts:
    def mean(of: Sequence[Sequence[float]]) -> tuple[float, ...]:
        return tuple(fsum(costs) / len(costs) for costs in zip(*of, strict=True))

    classes = kinds[0].integer
    return KernelCosts(
        name=" and ".join(costs.name for costs in kinds),
        seam=mean([costs.seam for costs in kinds]),  # type: ignore[arg-type]
        floating=kinds[0].floating,
        integer={name: mean([costs.integer[name] for costs in kinds]) for name in classes},
    )
