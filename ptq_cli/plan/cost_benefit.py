"""Costs and benefits of a plan: bytes of the file, and work; layers that save neither stay in float.

A layer that looks too small by itself may still pay in company: neighbors share the pairs between them. So
small layers that are connected through integer tensors are judged together, by what the whole plan saves with
and without them.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ptq_cli.core.words import format_bytes
from ptq_cli.models.graph_reading import constant_shape, every_node, every_value, short_name
from ptq_cli.plan.multiply_accumulates import Shape, bind_shapes, multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target

MOST_GROUPS = 100  # each is judged by planning the model again

# Plans a model with these layers in float, by name with the reason.
Planned = Callable[[Mapping[str, str]], Plan]


@dataclass(frozen=True, kw_only=True)
class _CostModel:
    """Bytes of what is added to a file, and time of what is computed, in multiply-accumulates.

    A multiply-accumulate stands for the time that an int8 kernel saves on one. Each ``names_of_…`` is how
    often the name of a tensor or a layer is part of the names in what is added; the bytes are without them.

    Attributes:
        pair_bytes: of a QuantizeLinear, a DequantizeLinear and their constants.
        constant_bytes: of the DequantizeLinear of a stored constant.
        dynamic_bytes: of the operators of a layer that makes integers of its activations at each run.
        per_element: for converting an element.
        per_node: for running a QuantizeLinear or a DequantizeLinear at all.
    """

    pair_bytes: int
    names_of_pair: int
    constant_bytes: int
    names_of_constant: int
    dynamic_bytes: int
    names_of_dynamic: int
    per_element: int
    per_node: int

    def pair(self, tensor: str) -> int:
        """Return how many bytes a pair behind a tensor adds to the file."""
        return self.pair_bytes + self.names_of_pair * len(short_name(tensor))

    def constant(self, tensor: str) -> int:
        """Return how many bytes the DequantizeLinear of a stored constant adds to the file."""
        return self.constant_bytes + self.names_of_constant * len(short_name(tensor))

    def dynamic(self, layer: str) -> int:
        """Return how many bytes it adds to the file to make integers of what a layer reads at each run.

        Example:
            >>> COSTS.dynamic("head")
            1320
        """
        return self.dynamic_bytes + self.names_of_dynamic * len(short_name(layer))

    def conversion(self, elements: int | None) -> int:
        """Return the time to convert a tensor; one of unknown size for the cost of its node alone."""
        return self.per_node + self.per_element * (elements or 0)


# Measured: docs/decisions/0009-layers-that-stay-float.md.
COSTS = _CostModel(
    pair_bytes=390,
    names_of_pair=14,
    constant_bytes=220,
    names_of_constant=8,
    dynamic_bytes=1200,
    names_of_dynamic=30,
    per_element=10,
    per_node=16_000,
)


@dataclass(frozen=True)
class Savings:
    """Savings of a plan, compared with the float model; negative where it costs.

    Units: bytes; multiply-accumulates in integers for one sample, with the sizes that ``bind_shapes``
        assumes, less those that the conversions are worth.
    """

    bytes: int
    work: int

    def __sub__(self, other: "Savings") -> "Savings":
        return Savings(self.bytes - other.bytes, self.work - other.work)


@dataclass(frozen=True)
class Sizes:
    """Shapes by the value's name, and multiply-accumulates by the node's; None if these are unknown."""

    shapes: Mapping[str, Shape]
    work: Mapping[str, int | None]

    @classmethod
    def of(cls, model: ir.Model) -> "Sizes":
        """Return the sizes of a model."""
        return cls(bind_shapes(model).shapes, multiply_accumulates(model).counts)

    def elements(self, name: str | None) -> int | None:
        """Return how many elements a value has; None if that is not known."""
        shape = self.shapes.get(name or "", (None,))
        known = [size for size in shape if size is not None]
        return prod(known) if len(known) == len(shape) else None


def savings(model: ir.Model, plan: Plan, sizes: Sizes) -> Savings:
    """Compare a plan with the float model."""
    integer = _integer_layers(plan)
    work = sum(sizes.work.get(name) or 0 for name in integer)
    return Savings(
        _bytes_saved(model, plan) - sum(map(COSTS.pair, plan.activations)),
        work - sum(_conversions(model, plan, integer, sizes)),
    )


MICROSECONDS_OF_ONE = 1.25e-5  # of a multiply-accumulate that integers save: docs/decisions/0009


def _integer_layers(plan: Plan) -> frozenset[str]:
    return frozenset(layer.name for layer in plan.layers if layer.quantized)


def _weight_bytes(model: ir.Model, tensor: str, bits: int, axis: int | None) -> int:
    """Return how many bytes it saves to store a weight as integers."""
    shape = constant_shape(model.graph.initializers[tensor])
    channels = shape[axis] if axis is not None and shape else 1
    stored = prod(shape) * (32 - max(bits, 4)) // 8
    return int(stored - 5 * channels - COSTS.constant(tensor))


def _bytes_saved(model: ir.Model, plan: Plan) -> int:
    weights = {(site.tensor, site.axis): site for site in plan.weights}
    saved = sum(_weight_bytes(model, site.tensor, site.format.bits, site.axis) for site in weights.values())
    saved -= sum(COSTS.dynamic(site.node) for site in plan.weights if site.dynamic)
    for site in plan.biases:
        value = model.graph.initializers[site.tensor]
        elements = value.const_value.size if value.const_value is not None else 0
        saved -= 4 * elements + COSTS.constant(site.tensor)
    return saved


def _conversions(model: ir.Model, plan: Plan, integer: Collection[str], sizes: Sizes) -> Iterator[int]:
    """Yield what each conversion between float and integer costs, in multiply-accumulates."""
    yield from conversions_at_each_run(model, {site.node for site in plan.weights if site.dynamic}, sizes)
    values = {value.name or "": value for value in every_value(model.graph)}
    for name in plan.activations:
        value = values[name]
        is_kept = not value.is_graph_output() and all(reader in integer for reader in _readers(value))
        if _producer(value) not in integer or not is_kept:
            yield COSTS.conversion(sizes.elements(name))


def conversions_at_each_run(model: ir.Model, dynamic: Collection[str], sizes: Sizes) -> Iterator[int]:
    """Yield what layers with ranges found at each run convert: what they read, and what they return."""
    for node in every_node(model.graph) if dynamic else ():
        if node.name in dynamic:
            for value in (node.inputs[0], node.outputs[0]):
                yield COSTS.conversion(sizes.elements(value.name) if value else None)


def _readers(value: ir.Value) -> list[str]:
    return [node.name or "" for node, _ in value.uses()]


def _producer(value: ir.Value) -> str:
    node = value.producer()
    return (node.name or "") if node is not None else ""


def unprofitable_layers(
    model: ir.Model, plan: Plan, target: Target, asked: Container[str], planned: Planned
) -> dict[str, str]:
    """Return the layers that are better left in float, with the reason, but none that the user ``asked`` for.

    ``planned`` plans the model again with more layers in float. Nothing, if no layer pays: whoever quantizes
    such a model gets what the target can do. A layer whose work or size is not known is taken to pay.
    """
    small = [node for node in _byte_wasters(model, plan, target) if (node.name or "") not in asked]
    if not small:
        return {}
    sizes = Sizes.of(model)
    names = [node.name or "" for node in small if _wastes_time(node, sizes)]
    groups = list(_groups(model, plan, names, target))
    if {site.node for site in plan.weights} <= set(names) and len(groups) == 1:
        return {}
    found: dict[str, str] = {}
    before = savings(model, plan, sizes)
    for group in groups[:MOST_GROUPS]:
        trial = planned({**found, **dict.fromkeys(group, "saves nothing")})
        if not trial.weights and not trial.activations:
            continue
        after = savings(model, trial, sizes)
        gained = before - after
        if gained.bytes <= 0 and gained.work <= 0:
            found |= dict.fromkeys(group, _reason(gained, len(group)))
            before = after
    return found


def _reason(gained: Savings, layers: int) -> str:
    more = f" and {layers - 1} more layer{'s' if layers > 2 else ''}" if layers > 1 else ""
    if not gained.bytes:
        return f"quantizing it{more} saves nothing"
    return f"quantizing it{more} would add {format_bytes(-gained.bytes)} to the file and save no time"


def _byte_wasters(model: ir.Model, plan: Plan, target: Target) -> Iterator[ir.Node]:
    """Yield the integer compute operators whose weight saves less than their own pairs add."""
    sites = {site.node: site for site in plan.weights}
    integer = _integer_layers(plan)
    for node in every_node(model.graph):
        name, rule = node.name or "", target.op.get(node.op_type)
        if name not in integer or rule is None or rule.kind != "compute":
            continue
        site = sites.get(name)
        saved = _weight_bytes(model, site.tensor, site.format.bits, site.axis) if site is not None else 0
        values = {value.name or "" for value in (*node.inputs, *node.outputs) if value is not None}
        added = sum(map(COSTS.pair, values & plan.activations.keys()))
        if site is not None and site.dynamic:
            added = COSTS.dynamic(name)
        if saved <= added:
            yield node


def _wastes_time(node: ir.Node, sizes: Sizes) -> bool:
    """Tell whether converting a layer's own tensors takes as long as its integer kernel saves."""
    work = sizes.work.get(node.name or "")
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    elements = [sizes.elements(value.name) for value in values if value.const_value is None]
    if work is None or None in elements:
        return False
    return work <= sum(map(COSTS.conversion, elements))


def _groups(model: ir.Model, plan: Plan, small: Iterable[str], target: Target) -> Iterator[tuple[str, ...]]:
    """Yield the small layers that quantized tensors connect, directly or through what only joins or moves."""
    integer, meant = _integer_layers(plan), dict.fromkeys(small)
    computing = {name for name, rule in target.op.items() if rule.kind == "compute"}
    between = {
        node
        for node in every_node(model.graph)
        if node.name in meant or (node.name in integer and node.op_type not in computing)
    }
    seen: set[ir.Node] = set()
    passed: set[ir.Value] = set()
    for node in every_node(model.graph):
        if node.name not in meant or node in seen:
            continue
        waiting, group = [node], []
        while waiting:
            current = waiting.pop()
            if current in seen or current not in between:
                continue
            seen.add(current)
            if current.name in meant:
                group.append(current.name or "")
            waiting += _neighbors(current, passed)
        yield tuple(group)


def _neighbors(node: ir.Node, passed: set[ir.Value]) -> Iterator[ir.Node]:
    """Yield what reads or computes a node's tensors, each tensor once: all layers may read one of them."""
    for value in (*node.inputs, *node.outputs):
        if value is None or value in passed:
            continue
        passed.add(value)
        producer = value.producer()
        if producer is not None:
            yield producer
        yield from (reader for reader, _ in value.uses())
