"""Weights in blocks beside activations in float: which kernel reads them, and which layers have none."""

import onnx_ir as ir

from ptq_cli.core.errors import TargetOverrideError
from ptq_cli.models.graph.graph_reading import rank_of
from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, BlockRule, Target
from ptq_cli.recipe.activation_modes import FLOAT
from ptq_cli.recipe.quantizer_settings import ScaledWeights, WeightFamily

MATRIX = 2


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
