"""Activations of 16 bits: which integers a target computes with, if any."""

from ptq_cli.core.formats import BY_NAME
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.sections import ActivationSettings

_WIDE = 16


def wide_format(target: Target, settings: ActivationSettings) -> str:
    """The integers of 16 bits that a target computes with; an empty string if there are none.

    Where the recipe asks for another quantizer or a type of its own, nothing is chosen.
    """
    own = target.activation.integers
    if _says_how(settings) or own.bits == _WIDE:
        return ""
    formats = [name for name in target.activation.formats if BY_NAME[name].bits == _WIDE]
    return min(formats, key=lambda name: BY_NAME[name].signed != own.signed, default="")


def why_not_wide(target: Target, settings: ActivationSettings) -> str:
    """Why activations of 16 bits are not tried; an empty string if they are.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> print(why_not_wide(load_target("ort-cpu"), ActivationSettings()))
        16 bits were not tried: target ort-cpu computes them in float between Q/DQ nodes, which takes longer \
than float alone
    """
    if wide_format(target, settings):
        return ""
    simulated = any(BY_NAME[name].bits == _WIDE for name in target.activation.simulated)
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


def _says_how(settings: ActivationSettings) -> bool:
    return any((settings.dtype, settings.bits, settings.quantizer not in (None, "scaled")))
