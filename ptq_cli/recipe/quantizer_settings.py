"""The quantizer that ``[weights]`` or ``[activations]`` names, with its parameters checked."""

import dataclasses
from dataclasses import replace
from typing import Any

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.formats import FLOATS
from ptq_cli.core.known_names import require_known
from ptq_cli.recipe.declaration import settings_of
from ptq_cli.recipe.quantizer_families import (
    DTYPES,
    FAMILIES,
    PLAIN,
    TENSOR,
    ActivationFamily,
    CenterWeights,
    FixedPointWeights,
    ScaledActivations,
    ScaledWeights,
    WeightFamily,
)
from ptq_cli.recipe.recovery_rungs import OF_MODES
from ptq_cli.recipe.sections import ActivationSettings, WeightSettings

OTHER_THAN_BYTES = DTYPES[2:]
DEFAULT_QUANTIZER = "scaled"
FOUR_BITS = 4


def weight_family(settings: WeightSettings, where: str = "weights") -> WeightFamily:
    """Return the family that ``[weights]`` names, with its parameters."""
    name = settings.quantizer or DEFAULT_QUANTIZER
    require_known("quantizer", name, FAMILIES)
    family: WeightFamily = _filled(FAMILIES[name].weights, settings, name, where)
    if isinstance(family, FixedPointWeights) and family.integer is not None and family.alpha != PLAIN:
        raise RecipeValueError(
            f"'{where}.integer' is {family.integer}, but alpha '{family.alpha}' finds the point itself",
            hint=f"leave integer out, or write alpha = '{PLAIN}'",
        )
    return _checked(family, settings.bits, where) if isinstance(family, ScaledWeights) else family


def _checked(family: ScaledWeights, asked_bits: int | None, where: str) -> ScaledWeights:
    """Return the scaled family, with the bits of its float type if it has one."""
    if not family.symmetric and family.block_size is None:
        raise RecipeValueError(
            f"'{where}.symmetric' is false, and only weights in blocks may have zero points",
            hint=f"set '{where}.block_size', such as 32, or leave symmetric out",
        )
    if family.dtype is None:
        return family
    bits = FLOATS[family.dtype].bits
    if asked_bits not in (None, bits):
        raise RecipeValueError(
            f"'{where}.bits' is {asked_bits}, but '{where}.dtype' is '{family.dtype}', with {bits}",
            hint="leave bits out",
        )
    if family.block_size is not None:
        raise RecipeValueError(
            f"'{where}.block_size' is {family.block_size}, but a {family.dtype} tensor "
            f"{'always has blocks of 16' if bits == FOUR_BITS else 'has no blocks'}",
            hint="leave block_size out",
        )
    return replace(family, bits=bits)


def activation_family(settings: ActivationSettings, where: str = "activations") -> ActivationFamily:
    """Return the family that ``[activations]`` names, with its parameters."""
    name = settings.quantizer or DEFAULT_QUANTIZER
    require_known("quantizer", name, FAMILIES)
    kind = FAMILIES[name].activations
    if isinstance(kind, str):
        known = [item for item, family in FAMILIES.items() if family.takes_activations]
        raise RecipeValueError(
            f"'{where}.quantizer' is '{name}', which is only for weights: {kind}",
            hint=f"activations take: {', '.join(known)}",
        )
    found: ActivationFamily = _filled(kind, settings, name, where)
    if isinstance(found, ScaledActivations) and found.bits is not None and found.dtype in OTHER_THAN_BYTES:
        raise RecipeValueError(
            f"'{where}.bits' is {found.bits}, but '{where}.dtype' is '{found.dtype}': only integers of 8 "
            "bits are kept within fewer bits",
            hint=f"leave out one of the two, or write dtype = '{DTYPES[0]}'",
        )
    return found


def _filled(kind: type[Any], settings: Any, name: str, where: str) -> Any:
    left_out = ("quantizer", *(OF_MODES if isinstance(settings, ActivationSettings) else ()))
    own = {key: value for key, value in vars(settings).items() if key not in left_out}
    given = {key: value for key, value in own.items() if value is not None}
    known = {item.key: item for item in settings_of(kind)}
    for key, value in given.items():
        if key not in known:
            raise RecipeKeyError(
                f"'{where}.{key}' is not a parameter of quantizer '{name}'",
                hint=f"'{name}' takes: {', '.join(known)}" if known else f"'{name}' takes none here",
            )
        if not known[key].allows(value):
            shown = f"'{value}'" if isinstance(value, str) else value
            raise RecipeValueError(
                f"'{where}.{key}' is {shown}, quantizer '{name}' expects {known[key].wanted}",
                hint=f"correct '{where}.{key}'",
            )
    return kind(**given)


def overridden(settings: Any, override: Any) -> Any:
    """Return ``[weights]`` or ``[activations]`` as an override changes them.

    Edge case:
        An override that names a quantizer replaces all settings: those of another family do not apply to it.

    Example:
        >>> overridden(WeightSettings(quantizer="dorefa", bits=4), WeightSettings(bits=3)).bits
        3
        >>> overridden(WeightSettings(quantizer="dorefa", bits=4), WeightSettings(quantizer="step")).quantizer
        'step'
    """
    if override is None:
        return settings
    if override.quantizer is not None:
        return override
    changes = {key: value for key, value in vars(override).items() if value is not None}
    return dataclasses.replace(settings, **changes)


def family_name(family: WeightFamily | ActivationFamily) -> str:
    """Return the name of a family."""
    return next(name for name, item in FAMILIES.items() if type(family) in (item.weights, item.activations))


# How the quantizers that a recipe names read in reports: a few words each.


def describe_weights(family: WeightFamily) -> str:
    """Say what a weight is stored as.

    Example:
        >>> from ptq_cli.recipe.quantizer_families import DorefaWeights
        >>> describe_weights(DorefaWeights(3)), describe_weights(CenterWeights(10))
        ('dorefa, 3 bits', 'centers (10), 4 bits')
    """
    if isinstance(family, CenterWeights):
        return f"centers ({family.centers}), {family.bits} bits"
    if isinstance(family, ScaledWeights) and family.dtype is not None:
        return f"{family_name(family)}, {family.dtype}"
    described = f"{family_name(family)}, {family.bits} bits"
    if isinstance(family, ScaledWeights) and family.block_size is not None:
        zeros = "" if family.symmetric else " with zero points"
        return f"{described} in blocks of {family.block_size}{zeros}"
    is_whole = isinstance(family, ScaledWeights) and family.granularity == TENSOR
    return f"{described}, one scale" if is_whole else described


def describe_activations(family: ActivationFamily) -> str:
    """Say what an activation is quantized to, where it is not the target's own.

    Example:
        >>> describe_activations(ScaledActivations(dtype="int16", symmetric=True))
        'scaled, int16, symmetric'
    """
    parts = [family_name(family)]
    if isinstance(family, ScaledActivations):
        parts += [f"{family.bits} bits"] if family.bits is not None else []
        parts += [family.dtype] if family.dtype else []
        parts += [] if family.symmetric is None else ["symmetric" if family.symmetric else "asymmetric"]
    return ", ".join(parts)
