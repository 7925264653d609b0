"""Activations in 16 bits: whether a target computes with them, and which ones a layer reads and makes."""

from collections.abc import Collection

import onnx_ir as ir

from ptq_cli.core.numbers.formats import BY_NAME
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.sections.quantization_sections import ActivationSettings

WIDE = 16


def wide_format(target: Target, settings: ActivationSettings) -> str:
    """Return the integers of 16 bits that a target computes with; an empty string if there are none.

    Args:
        target: its table says which formats overrides may ask for.
        settings: of the recipe; with another quantizer, or a type of its own, nothing is chosen.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> wide_format(load_target("ort-cpu"), ActivationSettings())
        ''
    """
    own = target.activation.integers
    if _says_how(settings) or own.bits == WIDE:
        return ""
    formats = [name for name in target.activation.formats if BY_NAME[name].bits == WIDE]
    return min(formats, key=lambda name: BY_NAME[name].signed != own.signed, default="")


def _says_how(settings: ActivationSettings) -> bool:
    """Return whether a recipe asks for certain integers itself."""
    return any((settings.dtype, settings.bits, settings.quantizer not in (None, "scaled")))


def why_not_wide(target: Target, settings: ActivationSettings) -> str:
    """Return why activations of 16 bits are not tried; an empty string if they are.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> print(why_not_wide(load_target("ort-cpu"), ActivationSettings()))
        16 bits were not tried: target ort-cpu computes them in float between Q/DQ nodes, which takes longer \
than float alone
    """
    if wide_format(target, settings):
        return ""
    simulated = any(BY_NAME[name].bits == WIDE for name in target.activation.simulated)
    if _says_how(settings):
        why = "the recipe says how activations are quantized"
    elif simulated:
        why = (
            f"target {target.name} computes them in float between Q/DQ nodes, which takes longer than "
            "float alone"
        )
    else:
        why = f"target {target.name} has no activations of 16 bits to choose"
    return f"16 bits were not tried: {why}"


def activations_of(model: ir.Model, plan: Plan, layers: Collection[str]) -> tuple[str, ...]:
    """Return the tensors whose parameters decide what some layers read and make, in graph order.

    Args:
        model: the float model.
        plan: made for it.
        layers: names of layers.
    """
    found: dict[str, None] = {}
    for node in model.graph.all_nodes():
        if (node.name or "") not in layers:
            continue
        for value in (*node.inputs, *node.outputs):
            site = plan.activations.get(value.name or "") if value is not None else None
            if site is not None:
                found[site.source] = None
    return tuple(found)
