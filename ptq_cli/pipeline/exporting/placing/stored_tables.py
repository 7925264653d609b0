"""Tables of embeddings that are stored in blocks, and looked up there."""

from dataclasses import replace

import onnx_ir as ir

from ptq_cli.pipeline.exporting.settings.block_kernels import block_rule
from ptq_cli.pipeline.exporting.settings.tensor_settings import TensorSettings
from ptq_cli.plan.formats.block_tables import table_bits, table_sites
from ptq_cli.plan.layers.tied_tables import tied_tables
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.activation_modes import STATIC
from ptq_cli.recipe.quantizer_settings import ScaledWeights

TABLE = "Gather"


def with_tables(model: ir.Model, plan: Plan, settings: TensorSettings, target: Target) -> Plan:
    """Return the plan with the tables of embeddings that are stored in blocks.

    A table that a layer has as its weight shares that layer's integers, if a Gather can read them.

    Args:
        model: the float model.
        plan: made for it.
        settings: of each tensor.
        target: whose rules made the plan.
    """
    tables = [site for site in table_sites(model, target) if _is_stored(model, site, settings, target)]
    if not tables:
        return plan
    tied = {name: item.site for item in tied_tables(model.graph, plan.weights) for name in item.gathers}
    own, reasons = [], {}
    for site in tables:
        family, shared = settings.weight_families[site], tied.get(site.node)
        if not isinstance(family, ScaledWeights):
            continue
        bits = table_bits(family.bits, target)
        if shared is None or settings.weight_families[shared] != replace(family, bits=bits):
            own.append(site)
            reasons[site.node] = (
                f"looks up rows of the table '{site.tensor}', stored in {bits} bits in blocks"
            )
    layers = tuple(replace(item, reason=reasons.get(item.name, item.reason)) for item in plan.layers)
    return replace(plan, weights=(*plan.weights, *own), layers=layers)


def _is_stored(model: ir.Model, site: WeightSite, settings: TensorSettings, target: Target) -> bool:
    family = settings.weight_families.get(site)
    if family is None or site.node in settings.excluded or not isinstance(family, ScaledWeights):
        return False
    if block_rule(family, target, TABLE, settings.modes.get(site.node, STATIC)) is None:
        return False
    table = model.graph.initializers[site.tensor].const_value
    return table is not None and int(table.shape.numpy()[1]) % (family.block_size or 1) == 0
