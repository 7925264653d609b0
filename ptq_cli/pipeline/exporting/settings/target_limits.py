"""What a recipe may ask of a target: its table says which integers it has."""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.core.errors import TargetOverrideError
from ptq_cli.core.numbers.formats import FLOATS
from ptq_cli.plan.sites import ActivationSite, Plan, WeightSite
from ptq_cli.plan.target.rules import Target, WeightRule
from ptq_cli.recipe.quantizer_settings import (
    ActivationFamily,
    CenterWeights,
    DorefaWeights,
    ScaledActivations,
    ScaledWeights,
    WeightFamily,
)
from ptq_cli.recipe.quantizer_words import describe_weights
from ptq_cli.recipe.sections.quantization_sections import WeightSettings

BYTE, HALF_BYTE = 8, 4
CODED = ("dorefa", "centers")
"""Quantizers whose bits are not those of an integer that a kernel multiplies."""


def within_bits(settings: WeightSettings, rule: WeightRule) -> WeightSettings:
    """Return ``[weights]`` with the target's bits where the recipe names none.

    Example:
        >>> within_bits(WeightSettings(), WeightRule(bits=7)).bits
        7
        >>> within_bits(WeightSettings(bits=4), WeightRule(bits=7)).bits
        4
    """
    if settings.bits is not None or rule.bits == BYTE or settings.quantizer in CODED:
        return settings
    return replace(settings, bits=rule.bits)


def require_weight(family: WeightFamily, site: WeightSite, target: Target, op_type: str) -> None:
    """Raise if a target has no kernel for the integers that are asked of a weight.

    Raises:
        TargetOverrideError: it has none.
    """
    rule = target.weight_rule(op_type)
    if isinstance(family, CenterWeights):
        return
    # DoReFa's levels are odd integers up to 2^bits - 1, a bit more than their number says.
    most = rule.bits - isinstance(family, DorefaWeights)
    if family.bits > most:
        raise TargetOverrideError(
            f"target '{target.name}' supports weights of up to {rule.bits} bits, and '{site.node}' asks for "
            f"{describe_weights(family)}",
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
    if family.block_size is not None and rule.blocks and family.bits > HALF_BYTE:
        raise TargetOverrideError(
            f"target '{target.name}' supports blocks for weights up to {HALF_BYTE} bits, and '{site.node}' "
            f"asks for {describe_weights(family)}",
            hint=f"ask for {HALF_BYTE} bits or fewer, or leave block_size out",
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
            f"{describe_weights(family)}",
            hint="keep its activations in float with --activation-mode float, or leave symmetric out",
        )
    is_other = family.axis is not None and family.axis != site.axis
    if is_other and family.block_size is None:
        has = "one scale for the whole weight" if site.axis is None else f"scales along axis {site.axis}"
        raise TargetOverrideError(
            f"target '{target.name}' reads the weight of '{site.node}' with {has}, and axis {family.axis} is "
            "asked for",
            hint="leave axis out, or set block_size too: then it is the axis that the blocks divide",
        )


def require_alike(
    plan: Plan,
    weights: Mapping[WeightSite, WeightFamily],
    activations: Mapping[str, ActivationFamily],
    model: ir.Model,
) -> None:
    """Raise if a layer would multiply a float format by another one: no kernel has factors of two types.

    Raises:
        TargetOverrideError: it would.
    """
    nodes = {node.name: node for node in model.graph.all_nodes()}
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
    """Raise if a target does not have the integers or the zero point that are asked of an activation.

    Raises:
        TargetOverrideError: it does not.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> tensorrt = load_target("tensorrt")
        >>> site = ActivationSite("x", "x", tensorrt.activation_format, symmetric=True)
        >>> require_activation(ScaledActivations("int8"), site, tensorrt)
    """
    if not isinstance(family, ScaledActivations):
        return
    rule = target.activation
    if family.bits is not None and family.bits < BYTE and not rule.clipped:
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
