"""Which layers are left in float because quantizing them saves neither bytes nor time.

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
from ptq_cli.plan.bound_shapes import Shape, bind_shapes
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target

PAIR_BYTES = 390
"""Of a QuantizeLinear, a DequantizeLinear and their constants, without the names in them."""
NAMES_OF_PAIR = 14
"""How often the name of the tensor is part of a name in such a pair."""
CONSTANT_BYTES = 220
"""Of the DequantizeLinear of a stored constant, without names."""
NAMES_OF_CONSTANT = 8
"""Likewise."""
DYNAMIC_BYTES = 1200
"""Of the operators of a layer that makes integers of its activations at each run, without names."""
NAMES_OF_DYNAMIC = 30
"""Likewise."""
PER_ELEMENT = 10
"""Multiply-accumulates whose int8 kernel saves as much time as converting an element takes."""
PER_NODE = 16_000
"""Likewise, for running a QuantizeLinear or a DequantizeLinear at all."""
INTEGER = 0.8
"""Likewise, for one that an int8 kernel computes (docs/decisions/0032-activations.md)."""


@dataclass(frozen=True)
class Savings:
    """What a plan saves, compared with the float model; negative where it costs.

    Units:
        bytes; multiply-accumulates in integers for one sample, with the sizes that ``bind_shapes`` assumes,
        less those that the conversions are worth.
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

    def elements(self, name: str) -> int | None:
        """Return how many elements a value has; None if that is not known."""
        shape = self.shapes.get(name, (None,))
        known = [size for size in shape if size is not None]
        return prod(known) if len(known) == len(shape) else None


def savings(model: ir.Model, plan: Plan, sizes: Sizes) -> Savings:
    """Return what a plan saves.

    A tensor of unknown size is converted for the cost of its nodes alone.

    Source:
        docs/decisions/0009-layers-that-stay-float.md, which has the command that measured the constants.
    """
    integer = {layer.name for layer in plan.layers if layer.quantized}
    work = sum(sizes.work.get(name) or 0 for name in integer)
    return Savings(
        _bytes_saved(model, plan) - sum(map(pair_bytes, plan.activations)),
        work - sum(_conversions(model, plan, integer, sizes)),
    )


def integer_time(model: ir.Model, plan: Plan, sizes: Sizes) -> float:
    """Return about how long a plan's integers take: products, and what is converted.

    Units:
        multiply-accumulates that integers save, as in ``savings``. Operators without products are left out,
        so that a share of this time is rather too large than too small.
    """
    integer = {layer.name for layer in plan.layers if layer.quantized}
    work = sum(
        (count or 0) * (INTEGER if name in integer else 1.0 + INTEGER) for name, count in sizes.work.items()
    )
    return max(1.0, work + sum(_conversions(model, plan, integer, sizes)))


def pair_bytes(tensor: str) -> int:
    """Return how many bytes a pair behind a tensor adds to the file."""
    return PAIR_BYTES + NAMES_OF_PAIR * len(short_name(tensor))


def dynamic_bytes(layer: str) -> int:
    """Return how many bytes it adds to the file to make integers of what a layer reads at each run.

    Example:
        >>> dynamic_bytes("head")
        1320
    """
    return DYNAMIC_BYTES + NAMES_OF_DYNAMIC * len(short_name(layer))


def weight_bytes(model: ir.Model, tensor: str, bits: int, axis: int | None) -> int:
    """Return how many bytes it saves to store a weight as integers."""
    shape = constant_shape(model.graph.initializers[tensor])
    channels = shape[axis] if axis is not None and shape else 1
    stored = prod(shape) * (32 - (bits if bits > 4 else 4)) // 8
    return int(stored - 5 * channels - CONSTANT_BYTES - NAMES_OF_CONSTANT * len(short_name(tensor)))


def _bytes_saved(model: ir.Model, plan: Plan) -> int:
    weights = {(site.tensor, site.axis): site for site in plan.weights}
    saved = sum(weight_bytes(model, site.tensor, site.format.bits, site.axis) for site in weights.values())
    saved -= sum(dynamic_bytes(site.node) for site in plan.weights if site.dynamic)
    for site in plan.biases:
        value = model.graph.initializers[site.tensor]
        elements = value.const_value.size if value.const_value is not None else 0
        saved -= 4 * elements + CONSTANT_BYTES + NAMES_OF_CONSTANT * len(short_name(site.tensor))
    return saved


def _conversions(model: ir.Model, plan: Plan, integer: set[str], sizes: Sizes) -> Iterator[int]:
    """Yield what each conversion between float and integer costs, in multiply-accumulates."""
    yield from conversions_at_each_run(model, {site.node for site in plan.weights if site.dynamic}, sizes)
    values = {value.name or "": value for value in every_value(model.graph)}
    for name in plan.activations:
        value = values[name]
        producer = value.producer()
        cost = PER_NODE + PER_ELEMENT * (sizes.elements(name) or 0)
        from_integers = producer is not None and (producer.name or "") in integer
        if not from_integers:
            yield cost
            continue
        readers = [reader for reader, _ in value.uses()]
        if value.is_graph_output() or any((reader.name or "") not in integer for reader in readers):
            yield cost


def conversions_at_each_run(model: ir.Model, dynamic: Collection[str], sizes: Sizes) -> Iterator[int]:
    """Yield what layers with ranges found at each run convert: what they read, and what they return."""
    for node in every_node(model.graph) if dynamic else ():
        if node.name in dynamic:
            for value in (node.inputs[0], node.outputs[0]):
                yield PER_NODE + PER_ELEMENT * (sizes.elements(value.name or "") or 0 if value else 0)


MOST_GROUPS = 100
"""Each is judged by planning the model again."""

Planned = Callable[[Mapping[str, str]], Plan]
"""Plans a model with these layers in float, by name with the reason."""


def unprofitable_layers(
    model: ir.Model, plan: Plan, target: Target, asked: Container[str], planned: Planned
) -> dict[str, str]:
    """Return the layers that are better left in float, with the reason, but none that the user ``asked`` for.

    ``planned`` plans the model again with more layers in float. Nothing, if no layer pays: whoever quantizes
    such a model gets what the target can do. A layer whose work or size is not known is taken to pay.
    """
    small = [name for name in _byte_wasters(model, plan, target) if name not in asked]
    if not small:
        return {}
    sizes = Sizes.of(model)
    nodes = {node.name: node for node in every_node(model.graph)}
    small = [name for name in small if _wastes_time(nodes[name], sizes)]
    if {site.node for site in plan.weights} <= set(small) and len(
        list(_groups(model, plan, small, target))
    ) == 1:
        return {}
    found: dict[str, str] = {}
    before = savings(model, plan, sizes)
    for group in list(_groups(model, plan, small, target))[:MOST_GROUPS]:
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
    what = "quantizing it"
    if layers > 1:
        what += f" and {layers - 1} more layer{'s' if layers > 2 else ''}"
    added = format_bytes(-gained.bytes)
    return (
        f"{what} would add {added} to the file and save no time" if gained.bytes else f"{what} saves nothing"
    )


def _byte_wasters(model: ir.Model, plan: Plan, target: Target) -> Iterator[str]:
    """Yield the integer compute operators whose weight saves less than their own pairs add."""
    sites = {site.node: site for site in plan.weights}
    integer = {layer.name for layer in plan.layers if layer.quantized}
    for node in every_node(model.graph):
        rule = target.op.get(node.op_type)
        if (node.name or "") not in integer or rule is None or rule.kind != "compute":
            continue
        site = sites.get(node.name or "")
        saved = weight_bytes(model, site.tensor, site.format.bits, site.axis) if site is not None else 0
        values = {value.name or "" for value in (*node.inputs, *node.outputs) if value is not None}
        added = sum(map(pair_bytes, values & plan.activations.keys()))
        if site is not None and site.dynamic:
            added = dynamic_bytes(site.node)
        if saved <= added:
            yield node.name or ""


def _wastes_time(node: ir.Node, sizes: Sizes) -> bool:
    """Tell whether converting a layer's own tensors takes as long as its integer kernel saves."""
    work = sizes.work.get(node.name or "")
    values = [
        value for value in (*node.inputs, *node.outputs) if value is not None and value.const_value is None
    ]
    elements = [sizes.elements(value.name or "") for value in values]
    if work is None or any(count is None for count in elements):
        return False
    return work <= sum(PER_NODE + PER_ELEMENT * (count or 0) for count in elements)


def _groups(model: ir.Model, plan: Plan, small: Iterable[str], target: Target) -> Iterator[tuple[str, ...]]:
    """Yield the small layers that quantized tensors connect, directly or through what only joins or moves."""
    integer = {layer.name for layer in plan.layers if layer.quantized}
    meant = dict.fromkeys(small)
    computing = {name for name, rule in target.op.items() if rule.kind == "compute"}
    between = {
        node
        for node in every_node(model.graph)
        if (node.name or "") in integer and node.op_type not in computing
    }
    between |= {node for node in every_node(model.graph) if (node.name or "") in meant}
    seen: set[ir.Node] = set()
    passed: set[ir.Value] = set()
    for node in every_node(model.graph):
        if (node.name or "") not in meant or node in seen:
            continue
        waiting, group = [node], []
        while waiting:
            current = waiting.pop()
            if current in seen or current not in between:
                continue
            seen.add(current)
            if (current.name or "") in meant:
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


def float_costs(model: ir.Model, plan: Plan, names: Collection[str]) -> dict[str, int]:
    """Return how many multiply-accumulates of work each layer costs if it alone stays in float.

    Units:
        multiply-accumulates for one sample, which integers save; conversions count as in ``savings``.

    Edge case:
        A layer that is converted to and from float for its own sake has a negative cost: it saves time in
        float. A tensor of unknown size is converted for the cost of its nodes alone.

    Source:
        docs/decisions/0009-layers-that-stay-float.md, for the cost of a conversion.
    """
    sizes, values = Sizes.of(model), {value.name or "": value for value in every_value(model.graph)}
    integer = frozenset(layer.name for layer in plan.layers if layer.quantized)
    around: dict[str, list[str]] = {}
    for tensor in plan.activations:
        for name in {*_readers(values[tensor]), _producer(values[tensor])}:
            around.setdefault(name, []).append(tensor)
    return {
        name: (sizes.work.get(name) or 0)
        + sum(_added(values[tensor], name, integer, sizes) for tensor in around.get(name, ()))
        for name in names
    }


def _added(value: ir.Value, layer: str, integer: frozenset[str], sizes: Sizes) -> int:
    """Return what is converted more, or if negative less, of a tensor beside a layer in float."""
    cost = PER_NODE + PER_ELEMENT * (sizes.elements(value.name or "") or 0)
    before = len(list(_costs_of_conversions(value, integer)))
    after = len(list(_costs_of_conversions(value, integer - {layer})))
    return (after - before) * cost


def _costs_of_conversions(value: ir.Value, integer: Collection[str]) -> Iterator[str]:
    """Yield what converts a tensor: to integers, to float."""
    readers = _readers(value)
    from_integers = _producer(value) in integer
    if not from_integers and any(name in integer for name in readers):
        yield "to integers"
    if from_integers and (value.is_graph_output() or any(name not in integer for name in readers)):
        yield "to float"


def _readers(value: ir.Value) -> list[str]:
    return [node.name or "" for node, _ in value.uses()]


def _producer(value: ir.Value) -> str:
    node = value.producer()
    return (node.name or "") if node is not None else ""
