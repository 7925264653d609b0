"""What a recipe may ask of a target: its table says which integers it has."""

from dataclasses import replace

from ptq_cli.core.errors import TargetOverrideError
from ptq_cli.plan.rules import WeightRule
from ptq_cli.recipe.quantizers import CenterWeights, DorefaWeights, WeightFamily, describe_weights
from ptq_cli.recipe.schema import WeightSettings

BYTE = 8
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


def require_bits(family: WeightFamily, rule: WeightRule, target: str, layer: str) -> None:
    """Raise if a weight's integers are larger than the target's kernels take.

    Raises:
        TargetOverrideError: they are.

    Example:
        >>> require_bits(DorefaWeights(7), WeightRule(bits=7), "ort-cpu-avx2", "head")
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.TargetOverrideError: PTQ-PLAN-002: target 'ort-cpu-avx2' has weights of up to \
7 bits, and 'head' asks for dorefa, 7 bits
        hint: ask for 6 bits or fewer, or name another target
    """
    if isinstance(family, CenterWeights):
        return
    # DoReFa's levels are odd integers up to 2^bits - 1, a bit more than their number says.
    most = rule.bits - isinstance(family, DorefaWeights)
    if family.bits > most:
        raise TargetOverrideError(
            f"target '{target}' has weights of up to {rule.bits} bits, and '{layer}' asks for "
            f"{describe_weights(family)}",
            hint=f"ask for {most} bits or fewer, or name another target",
        )
