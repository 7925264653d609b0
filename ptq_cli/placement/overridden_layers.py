"""Which tensors and layers the overrides of a recipe mean, and what they say of layers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.amax.overrides import Meant, OverridesByName, described
from ptq_cli.models.graph_reading import every_node, names_around
from ptq_cli.plan.neighbors import Rules, clamp_behind
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.sections import ActivationSettings, OverrideSettings


def meant_activations(model: ir.Model, plan: Plan, rules: Rules) -> dict[str, Meant]:
    """Return the names and operator types of each activation, by the tensor whose statistics decide."""
    around = names_around(model.graph)
    producers = {value.name: node for node in every_node(model.graph) for value in node.outputs}
    names: dict[str, dict[str, None]] = {}
    ops: dict[str, dict[str, None]] = {}
    for site in plan.activations.values():
        for tensor in (site.source, site.tensor):
            known, types = names.setdefault(site.source, {}), ops.setdefault(site.source, {})
            known[tensor] = None
            for node in _computing(producers.get(tensor), rules):
                known |= dict.fromkeys([*filter(None, [node.name]), *around.get(node.name or "", ())])
                types[node.op_type] = None
    return {source: Meant(tuple(known), tuple(ops[source])) for source, known in names.items()}


def _computing(node: ir.Node | None, rules: Rules) -> list[ir.Node]:
    """Return the node that computes a tensor, and the one that it is part of, as a Relu of a Conv."""
    if node is None:
        return []
    before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return [node, before] if before is not None and clamp_behind(before, rules) is node else [node]


def meant_weights(model: ir.Model, sites: Sequence[WeightSite]) -> dict[WeightSite, Meant]:
    """Return the names and operator types of each weight: its own name, and its layer's."""
    ops = {node.name: node.op_type for node in every_node(model.graph)}
    around = names_around(model.graph)
    return {
        site: Meant((site.tensor, site.node, *around.get(site.node, ())), (ops[site.node],)) for site in sites
    }


def meant_layers(model: ir.Model) -> dict[str, Meant]:
    """Return the names of each layer: its own, and those of its outputs and of the layers around it."""
    found, around = {}, names_around(model.graph)
    for node in every_node(model.graph):
        names = [node.name, *(item.name for item in node.outputs), *around.get(node.name or "", ())]
        found[node.name or ""] = Meant(tuple(filter(None, names)), (node.op_type,))
    return found


def excluded_layers(
    layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings], target: Target
) -> dict[str, str]:
    """Return the layers that the last override which decides keeps in float.

    Where some are asked for, an operator with a kernel that pays stays float unless it is asked for. What
    only follows, such as a pooling between two of them, follows.
    """
    asks = any(item.quantize for item in overrides)
    decided, found = dict(decided_layers(layers, overrides)), {}
    for name, meant in layers.items():
        last = decided.get(name)
        (op_type,) = meant.ops
        rule = target.op.get(op_type)
        if last is not None and not last.quantize:
            found[name] = f"kept in float: {described(last)}"
        elif last is None and asks and rule is not None and rule.kind in ("compute", "stored"):
            found[name] = "kept in float: it is not one of the layers to include"
    return found


def layer_activations(
    layers: Mapping[str, Meant], general: ActivationSettings, overrides: Sequence[OverrideSettings]
) -> dict[str, ActivationSettings]:
    """Return the settings of the activations that each layer reads: the general ones with its overrides."""
    found, by_name = {}, OverridesByName(overrides)
    for name, meant in layers.items():
        settings = general
        for item in by_name.of(meant):
            own = item.activations
            if own is not None:
                mode, granularity = own.mode or settings.mode, own.granularity or settings.granularity
                settings = replace(settings, mode=mode, granularity=granularity)
        found[name] = settings
    return found


def with_own_mode(layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings]) -> Iterator[str]:
    """Yield the layers for which an override decides what is done with their activations."""
    deciding = OverridesByName(item for item in overrides if item.activations and item.activations.mode)
    for name, meant in layers.items():
        if deciding.of(meant):
            yield name


def decided_layers(
    layers: Mapping[str, Meant], overrides: Sequence[OverrideSettings]
) -> Iterator[tuple[str, OverrideSettings]]:
    """Yield the layers that an override selects or keeps in float, with the last that does."""
    deciding = OverridesByName(item for item in overrides if item.quantize is not None)
    for name, meant in layers.items():
        if found := deciding.of(meant):
            yield name, found[-1]
