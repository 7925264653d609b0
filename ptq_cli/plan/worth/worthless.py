"""Which layers are left in float because quantizing them saves neither bytes nor time.

A layer that looks too small by itself may still pay in company: neighbors share the pairs between them. So
small layers that are connected through integer tensors are judged together, by what the whole plan saves with
and without them.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import onnx_ir as ir

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.worth.savings import (
    PER_ELEMENT,
    PER_NODE,
    Savings,
    Sizes,
    dynamic_bytes,
    pair_bytes,
    savings,
    weight_bytes,
)

MOST_GROUPS = 100
"""Each is judged by planning the model again."""

Planned = Callable[[Mapping[str, str]], Plan]
"""Plans a model with these layers in float, by name with the reason."""


def worthless_layers(
    model: ir.Model, plan: Plan, target: Target, asked: Container[str], planned: Planned
) -> dict[str, str]:
    """Return the layers that are better left in float, with the reason.

    Args:
        model: the float model.
        plan: what would be quantized of it.
        target: the target whose rules made the plan.
        asked: layers that the user wants quantized.
        planned: plans the model again with these layers in float.

    Edge case:
        Nothing, if no layer pays: whoever quantizes such a model gets what the target can do. A layer whose
        work or size is not known is taken to pay.
    """
    small = [name for name in _byte_wasters(model, plan, target) if name not in asked]
    if not small:
        return {}
    sizes = Sizes.of(model)
    small = [name for name in small if _wastes_time(model, name, sizes)]
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
    for node in model.graph.all_nodes():
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


def _wastes_time(model: ir.Model, name: str, sizes: Sizes) -> bool:
    """Tell whether converting a layer's own tensors takes as long as its integer kernel saves."""
    node = next(node for node in model.graph.all_nodes() if node.name == name)
    work = sizes.work.get(name)
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
        for node in model.graph.all_nodes()
        if (node.name or "") in integer and node.op_type not in computing
    }
    between |= {node for node in model.graph.all_nodes() if (node.name or "") in meant}
    seen: set[ir.Node] = set()
    for node in model.graph.all_nodes():
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
            waiting += _neighbors(current)
        yield tuple(group)


def _neighbors(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        if value is not None:
            producer = value.producer()
            if producer is not None:
                yield producer
            yield from (reader for reader, _ in value.uses())
    for value in node.outputs:
        yield from (reader for reader, _ in value.uses())
