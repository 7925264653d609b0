"""Weights in blocks beside activations in float: which kernel reads them, and which layers have none."""

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from ptq_cli.core.errors import TargetOverrideError
from ptq_cli.models.graph.graph_reading import rank_of
from ptq_cli.plan.formats.block_tables import table_bits, table_sites
from ptq_cli.plan.layers.tied_tables import tied_tables
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, BlockRule, Target
from ptq_cli.recipe.activation_modes import FLOAT, STATIC
from ptq_cli.recipe.quantizer_settings import ScaledWeights, WeightFamily

if TYPE_CHECKING:
    from ptq_cli.pipeline.exporting.settings.tensor_settings import TensorSettings

MATRIX = 2
TABLE = "Gather"


def block_rule(family: WeightFamily, target: Target, op_type: str, mode: str) -> BlockRule | None:
    """Return the rule of the kernel that reads a weight; None if it has no blocks, or none reads them.

    Args:
        family: of the weight.
        target: whose rules hold.
        op_type: of the layer.
        mode: what is done with the layer's activations.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> rule = block_rule(ScaledWeights(bits=4, block_size=32), load_target("ort-cpu"), "MatMul", "float")
        >>> rule.kernel if rule else ""
        'MatMulNBits'
    """
    if mode != FLOAT or not isinstance(family, ScaledWeights) or family.block_size is None:
        return None
    rule = target.op.get(op_type)
    return rule.blocks if rule is not None else None


def unread_blocks(
    family: WeightFamily, target: Target, op_type: str, mode: str, weight: ir.Value | None
) -> str:
    """Return why no kernel reads a weight in blocks, where a target has one for others; or an empty string.

    Args:
        family: of the weight.
        target: whose rules hold.
        op_type: of the layer.
        mode: what is done with the layer's activations.
        weight: the constant.
    """
    is_in_blocks = isinstance(family, ScaledWeights) and family.block_size is not None
    if mode != FLOAT or not is_in_blocks or not has_block_kernels(target):
        return ""
    rule = target.op.get(op_type)
    if rule is not None and rule.kind == "stored":
        return ""
    if block_rule(family, target, op_type, mode) is None:
        return (
            f"no kernel of target {target.name} reads weights of {op_type} in blocks, so they would only "
            "make the file smaller, and --include asks for that"
        )
    rank = rank_of(weight) if weight is not None else None
    if rank not in (None, MATRIX):
        return f"its weight has {rank} axes, and kernels for blocks read matrices"
    return ""


def shorter_block(
    family: WeightFamily, site: WeightSite, target: Target, op_type: str, mode: str, shape: tuple[int, ...]
) -> str:
    """Return why a runtime cannot read blocks that do not divide the inputs, which ONNX Runtime can.

    Args:
        family: of the weight.
        site: of the weight, as the target plans it.
        target: whose rules hold.
        op_type: of the layer.
        mode: what is done with the layer's activations.
        shape: of the weight.
    """
    rule = block_rule(family, target, op_type, mode)
    size = family.block_size if isinstance(family, ScaledWeights) else None
    if rule is None or size is None or target.runtime == ONNXRUNTIME or site.axis is None:
        return ""
    inputs = shape[1 - site.axis]
    return f"it has {inputs} inputs, which blocks of {size} do not divide" if inputs % size else ""


def has_block_kernels(target: Target) -> bool:
    """Return whether a target has a kernel for weights in blocks."""
    return any(rule.blocks is not None for rule in target.op.values())


def require_blocks(family: ScaledWeights, site: WeightSite, target: Target, rule: BlockRule) -> None:
    """Raise if a runtime's kernel for blocks does not read those that are asked of a weight.

    Args:
        family: what is asked.
        site: of the weight, as the target plans it.
        target: whose rule it is.
        rule: of the operator's blocks.

    Raises:
        TargetOverrideError: it does not.
    """
    where = f"{rule.kernel} of target '{target.name}'"
    if family.block_size not in rule.sizes:
        sizes = ", ".join(map(str, rule.sizes))
        raise TargetOverrideError(
            f"{where} reads blocks of {sizes}, and '{site.node}' asks for {family.block_size}: its weight "
            "would be restored to floats at each run",
            hint=f"set block_size = {rule.sizes[1]}, the usual choice",
        )
    if family.bits not in rule.bits and site.block_axis is None:
        bits = ", ".join(map(str, rule.bits))
        raise TargetOverrideError(
            f"{where} reads weights of {bits} bits, and '{site.node}' asks for {family.bits}",
            hint=f"ask for one of these, or leave the layer in float with --exclude '{site.node}'",
        )


def with_tables(model: ir.Model, plan: Plan, settings: "TensorSettings", target: Target) -> Plan:
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


def _is_stored(model: ir.Model, site: WeightSite, settings: "TensorSettings", target: Target) -> bool:
    family = settings.weight_families.get(site)
    if family is None or site.node in settings.excluded or not isinstance(family, ScaledWeights):
        return False
    if block_rule(family, target, TABLE, settings.modes.get(site.node, STATIC)) is None:
        return False
    table = model.graph.initializers[site.tensor].const_value
    return table is not None and int(table.shape.numpy()[1]) % (family.block_size or 1) == 0
