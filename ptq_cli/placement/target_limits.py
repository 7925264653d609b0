"""What a recipe may ask of a target: which integers it has, and which kernels read weights in blocks."""

from collections.abc import Mapping

import onnx_ir as ir

from ptq_cli.core.errors import TargetOverrideError
from ptq_cli.core.formats import FLOATS
from ptq_cli.models.graph_reading import every_node, rank_of
from ptq_cli.plan.sites import ActivationSite, Plan, WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, BlockRule, Target, WeightRule
from ptq_cli.recipe.check import DEFAULT_QUANTIZER, overridden
from ptq_cli.recipe.check import described as described_family
from ptq_cli.recipe.declaration import FLOAT
from ptq_cli.recipe.quantizer_families import (
    FAMILIES,
    ActivationFamily,
    ScaledActivations,
    ScaledWeights,
    WeightFamily,
)
from ptq_cli.recipe.sections import WeightSettings

_BYTE, _HALF_BYTE = 8, 4  # bits
MATRIX = 2  # axes


def within_bits(settings: WeightSettings, rule: WeightRule) -> WeightSettings:
    """Return ``[weights]`` with the target's bits where the recipe names none.

    Example:
        >>> within_bits(WeightSettings(), WeightRule(bits=7)).bits
        7
        >>> within_bits(WeightSettings(bits=4), WeightRule(bits=7)).bits
        4
    """
    family = FAMILIES.get(settings.quantizer or DEFAULT_QUANTIZER)
    if settings.bits is not None or rule.bits == _BYTE:
        return settings
    if family is None or not family.weights.takes_bits_of_target:  # An unknown name is refused later.
        return settings
    changed: WeightSettings = overridden(settings, WeightSettings(bits=rule.bits))
    return changed


def require_weight(family: WeightFamily, site: WeightSite, target: Target, op_type: str) -> None:
    """Raise if a target has no kernel for the integers that are asked of a weight."""
    rule = target.weight_rule(op_type)
    if family.float_reason:
        return
    most = rule.bits - family.extra_bits
    if family.bits > most:
        raise TargetOverrideError(
            f"target '{target.name}' supports weights of up to {rule.bits} bits, and '{site.node}' asks for "
            f"{described_family(family)}",
            hint=f"ask for {most} bits or fewer, or choose another target",
        )
    if isinstance(family, ScaledWeights):
        _require_format(family, site, target, rule)
        _require_blocks(family, site, target, rule)
        _require_scales(family, site, target)


def _require_format(family: ScaledWeights, site: WeightSite, target: Target, rule: WeightRule) -> None:
    if family.dtype is not None and family.dtype not in rule.formats:
        has = ", ".join((rule.format, *rule.formats))
        raise TargetOverrideError(
            f"target '{target.name}' has weights of {has}, and '{site.node}' asks for {family.dtype}",
            hint="choose another target (tensorrt has float types), or leave dtype out",
        )


def _require_blocks(family: ScaledWeights, site: WeightSite, target: Target, rule: WeightRule) -> None:
    if family.block_size is not None and rule.blocks and family.bits > _HALF_BYTE:
        raise TargetOverrideError(
            f"target '{target.name}' supports blocks for weights up to {_HALF_BYTE} bits, and '{site.node}' "
            f"asks for {described_family(family)}",
            hint=f"ask for {_HALF_BYTE} bits or fewer, or leave block_size out",
        )
    if family.block_size is not None and not rule.blocks:
        raise TargetOverrideError(
            f"target '{target.name}' has no weights in blocks, but '{site.node}' asks for blocks of "
            f"{family.block_size}",
            hint="leave block_size out, or choose another target",
        )


def _require_scales(family: ScaledWeights, site: WeightSite, target: Target) -> None:
    if not family.symmetric:
        raise TargetOverrideError(
            f"target '{target.name}' has symmetric weights, and '{site.node}' asks for "
            f"{described_family(family)}",
            hint="keep its activations in float with --set activations.mode=float, or leave symmetric out",
        )


def require_alike(
    plan: Plan,
    weights: Mapping[WeightSite, WeightFamily],
    activations: Mapping[str, ActivationFamily],
    model: ir.Model,
) -> None:
    """Raise if a layer would multiply a float format by another one: no kernel has factors of two types."""
    nodes = {node.name: node for node in every_node(model.graph)}
    integer = {layer.name for layer in plan.layers if layer.quantized}
    for site in plan.weights:
        node = nodes[site.node]
        names = [value.name or "" for value in node.inputs if value is not None]
        sources = [plan.activations[name] for name in names if name in plan.activations]
        if site.node not in integer or not sources:
            continue
        one, other = _dtype(weights[site]), _dtype(activations[sources[0].source])
        if one != other and {one, other} & FLOATS.keys():
            raise TargetOverrideError(
                f"'{site.node}' would multiply weights of {one or 'integers'} by activations of "
                f"{other or 'integers'}, which no kernel does",
                hint="give 'weights.dtype' and 'activations.dtype' the same float type",
            )


def _dtype(family: WeightFamily | ActivationFamily) -> str:
    dtype = family.dtype if isinstance(family, ScaledWeights | ScaledActivations) else None
    return dtype if dtype in FLOATS else ""


def require_activation(family: ActivationFamily, site: ActivationSite, target: Target) -> None:
    """Raise if a target does not have the integers or the zero point that are asked of an activation."""
    if not isinstance(family, ScaledActivations):
        return
    rule = target.activation
    if family.bits is not None and family.bits < _BYTE and not rule.clipped:
        raise TargetOverrideError(
            f"target '{target.name}' has activations of {site.format.bits} bits, and '{site.tensor}' asks "
            f"for {family.bits}",
            hint="leave the bits of activations out, or choose another target (ort-cpu)",
        )
    allowed = list(dict.fromkeys((site.format.name, rule.format, *rule.formats, *rule.simulated)))
    if family.dtype is not None and family.dtype not in allowed:
        raise TargetOverrideError(
            f"target '{target.name}' has activations of {', '.join(allowed)}, and '{site.tensor}' asks for "
            f"{family.dtype}",
            hint=f"ask for {' or '.join(allowed)}, or choose another target",
        )
    if family.symmetric is False and rule.symmetric:
        raise TargetOverrideError(
            f"target '{target.name}' requires zero points of 0, but '{site.tensor}' asks for others "
            "(symmetric = false)",
            hint="leave symmetric out, or choose another target",
        )


def block_rule(family: WeightFamily, target: Target, op_type: str, mode: str) -> BlockRule | None:
    """Return the rule of the kernel that reads a weight in blocks beside such activations, or None."""
    if mode != FLOAT or not isinstance(family, ScaledWeights) or family.block_size is None:
        return None
    rule = target.op.get(op_type)
    return rule.blocks if rule is not None else None


def unread_blocks(
    family: WeightFamily, target: Target, op_type: str, mode: str, weight: ir.Value | None
) -> str:
    """Reason why no kernel reads a weight in blocks, where a target has one for others; or ""."""
    is_in_blocks = isinstance(family, ScaledWeights) and family.block_size is not None
    if mode != FLOAT or not is_in_blocks or not has_block_kernels(target):
        return ""
    rule = target.op.get(op_type)
    if rule is not None and rule.kind == "stored":
        return ""
    if block_rule(family, target, op_type, mode) is None:
        return (
            f"no kernel of target {target.name} reads weights of {op_type} in blocks, so they would only "
            "make the file smaller, and --set 'override=PATTERN:quantize=true' asks for that"
        )
    rank = rank_of(weight) if weight is not None else None
    if rank not in (None, MATRIX):
        axes = "1 axis" if rank == 1 else f"{rank} axes"
        return f"its weight has {axes}, and kernels for blocks read matrices"
    return ""


def shorter_block(
    family: WeightFamily, site: WeightSite, target: Target, op_type: str, mode: str, shape: tuple[int, ...]
) -> str:
    """Reason why a runtime cannot read blocks that do not divide the inputs (ONNX Runtime can), or ""."""
    rule = block_rule(family, target, op_type, mode)
    size = family.block_size if isinstance(family, ScaledWeights) else None
    if rule is None or size is None or target.runtime == ONNXRUNTIME or site.axis is None:
        return ""
    inputs = shape[1 - site.axis]
    return f"it has {inputs} inputs, which blocks of {size} do not divide" if inputs % size else ""


def has_block_kernels(target: Target) -> bool:
    """Whether a target has a kernel for weights in blocks."""
    return any(rule.blocks is not None for rule in target.op.values())


def require_blocks(family: ScaledWeights, site: WeightSite, target: Target, rule: BlockRule) -> None:
    """Raise if a runtime's kernel for blocks does not read those that are asked of a weight."""
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
