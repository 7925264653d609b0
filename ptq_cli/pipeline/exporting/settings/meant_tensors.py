"""The names and operator types by which an override may mean a tensor or a layer."""

from collections.abc import Sequence

import onnx_ir as ir

from ptq_cli.amax.overrides import Meant
from ptq_cli.models.graph.graph_reading import names_around
from ptq_cli.plan.questions.neighbors import Rules, clamp_behind
from ptq_cli.plan.sites import Plan, WeightSite


def meant_activations(model: ir.Model, plan: Plan, rules: Rules) -> dict[str, Meant]:
    """Return what means each activation of a plan, by the tensor whose statistics decide."""
    around = names_around(model.graph)
    producers = {value.name: node for node in model.graph.all_nodes() for value in node.outputs}
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
    """Return what means each weight: its own name, and its layer's."""
    ops = {node.name: node.op_type for node in model.graph.all_nodes()}
    around = names_around(model.graph)
    return {
        site: Meant((site.tensor, site.node, *around.get(site.node, ())), (ops[site.node],)) for site in sites
    }


def meant_layers(model: ir.Model) -> dict[str, Meant]:
    """Return what means each layer: its name, and those of its outputs and of the layers around it."""
    found, around = {}, names_around(model.graph)
    for node in model.graph.all_nodes():
        names = [node.name, *(item.name for item in node.outputs), *around.get(node.name or "", ())]
        found[node.name or ""] = Meant(tuple(filter(None, names)), (node.op_type,))
    return found
