"""The quantizer that ``[weights]`` or ``[activations]`` names, with its parameters checked."""

import dataclasses
from typing import Any

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.words import require_known
from ptq_cli.recipe.declaration import STATIC, settings_of
from ptq_cli.recipe.quantizer_families import FAMILIES, ActivationFamily, ScaledWeights, WeightFamily
from ptq_cli.recipe.recovery_rungs import OF_MODES, mode_of
from ptq_cli.recipe.sections import ActivationSettings, WeightSettings

DEFAULT_QUANTIZER = "scaled"


def weight_family(settings: WeightSettings, where: str = "weights") -> WeightFamily:
    """The family that ``[weights]`` names, with its parameters."""
    name = settings.quantizer or DEFAULT_QUANTIZER
    require_known("quantizer", name, FAMILIES)
    family: WeightFamily = _filled(FAMILIES[name].weights, settings, name, where)
    return family.checked(where, settings.bits)


def activation_family(settings: ActivationSettings, where: str = "activations") -> ActivationFamily:
    """The family that ``[activations]`` names, with its parameters."""
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
    return found.checked(where)


def are_plain(weights: WeightSettings, activations: ActivationSettings) -> bool:
    """Whether all is measured ranges and evenly spread integers with a scale for each channel."""
    family = weight_family(weights)
    scaled = isinstance(family, ScaledWeights) and family.block_size is None and family.dtype is None
    others = [key for key, value in vars(activations).items() if key != "mode" and value is not None]
    return scaled and mode_of(activations) == STATIC and not others


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

    Edge case: An override that names a quantizer replaces all settings: those of another family do not apply
        to it.

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
    """The name of a family."""
    return next(name for name, item in FAMILIES.items() if type(family) in (item.weights, item.activations))


def described(family: WeightFamily | ActivationFamily) -> str:
    """Say in a few words what a weight is stored as, or an activation is quantized to.

    Example:
        >>> from ptq_cli.recipe.quantizer_families import CenterWeights, DorefaWeights, ScaledActivations
        >>> described(DorefaWeights(3)), described(CenterWeights(10))
        ('dorefa, 3 bits', 'centers (10), 4 bits')
        >>> described(ScaledActivations(dtype="int16", symmetric=True))
        'scaled, int16, symmetric'
    """
    return family.in_words(family_name(family))
