"""Values of the right type that still make no sense, by themselves, beside others, or for a quantizer."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.formats import FLOATS
from ptq_cli.core.words import require_known
from ptq_cli.recipe.declaration import STATIC, Setting, settings_of
from ptq_cli.recipe.quantizer_families import (
    FAMILIES,
    ActivationFamily,
    ScaledActivations,
    ScaledWeights,
    WeightFamily,
)
from ptq_cli.recipe.recovery_rungs import (
    OF_MODES,
    check_granularity,
    check_mode,
    check_overridden,
    mode_of,
    recovery_rungs,
)
from ptq_cli.recipe.schema import SETTINGS, Recipe
from ptq_cli.recipe.sections import (
    LATENCY,
    ActivationSettings,
    AmaxSettings,
    ExportSettings,
    Limit,
    OverrideSettings,
    TextSettings,
    WeightSettings,
)

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
    others = [key for key, value in vars(activations).items() if key != "mode" and value is not None]
    return has_plain_weights(weights) and mode_of(activations) == STATIC and not others


def has_plain_weights(weights: WeightSettings) -> bool:
    """Whether weights are evenly spread integers with a scale for each channel."""
    family = weight_family(weights)
    return isinstance(family, ScaledWeights) and family.block_size is None and family.dtype is None


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


# Sections whose values depend on the quantizer or on the entry, and are checked with it.
_ELSEWHERE = ("weights", "activations", "override", "metric")
SEARCHES = ("entropy", "mse")  # Methods of amax that try ranges on the steps of integers.


def check_recipe(recipe: Recipe) -> Recipe:
    """The recipe if its values make sense.

    Names (of a method, a target, a metric) are looked up by the room that knows them.
    """
    for key, declared in SETTINGS.items():
        section, _, name = key.partition(".")
        if section not in _ELSEWHERE:
            _check_value(declared, getattr(getattr(recipe, section), name))
    _check_windows(recipe.text)
    if len(recipe.data.frame) > 2 or min(recipe.data.frame, default=1) < 1:
        raise _refusal(SETTINGS["data.frame"], recipe.data.frame)
    for name, value in recipe.model.inputs.items():
        _check_constant(name, value)
    for name, axis in recipe.data.batch_axis.items():
        _check_batch_axis(name, axis)
    for name, shape in recipe.model.input_shape.items():
        _check_shape(name, shape)
    _check_profile(recipe.export)
    recovery_rungs(recipe.recovery)
    _check_methods(recipe.amax, recipe.weights, recipe.activations)
    check_mode(recipe.activations)
    for override in recipe.override:
        _check_override(override)
    check_granularity(recipe)
    check_overridden(recipe)
    return recipe


def _check_value(declared: Setting, value: object) -> None:
    if declared.type == dict[str, Limit] and isinstance(value, dict):
        _check_limits(declared.key, value)
    elif not declared.allows(value):
        raise _refusal(declared, value)


def _refusal(declared: Setting, value: object) -> RecipeValueError:
    return RecipeValueError(
        f"'{declared.key}' is {value!r}, it must be {declared.wanted}", hint=f"correct '{declared.key}'"
    )


def split_method(text: str) -> tuple[str, float | None]:
    """Method and percentile of an override's ``amax``; NaN if what follows the method is not a number.

    Example:
        >>> split_method("mse"), split_method("percentile 99.9"), split_method("percentile few")
        (('mse', None), ('percentile', 99.9), ('percentile', nan))
    """
    method, space, percentile = text.partition(" ")
    if not space or method != "percentile":
        return text, None
    try:
        return method, float(percentile)
    except ValueError:
        return method, math.nan


def _check_windows(text: TextSettings) -> None:
    stride, columns = SETTINGS["text.stride"], SETTINGS["text.columns"]
    if text.stride is not None and text.window is not None and text.stride > text.window:
        raise _refusal(stride, text.stride)
    if len(text.columns) > 2 or not all(text.columns):
        raise _refusal(columns, text.columns)


def _check_limits(section: str, limits: Mapping[str, Limit]) -> None:
    for metric, limit in limits.items():
        if isinstance(limit, float) and math.isnan(limit):
            raise RecipeValueError(f"'{section}.{metric}' is NaN, expected a number", hint="give a limit")


def _check_batch_axis(name: str, axis: int | str) -> None:
    if axis != "none" and (isinstance(axis, str) or axis < 0):
        raise RecipeValueError(
            f"'data.batch_axis.{name}' is {axis!r}, expected an axis from 0, or 'none'",
            hint="for example: --set data.batch_axis.state=1",
        )


def _check_shape(name: str, shape: Sequence[int]) -> None:
    if not shape or min(shape) < 1:
        raise RecipeValueError(
            f"'model.input_shape.{name}' is {shape}, expected sizes of at least 1",
            hint="for example: --set model.input_shape.x=1,3,224,224",
        )


def _check_profile(export: ExportSettings) -> None:
    if export.profile is not None and export.prefer != LATENCY:
        raise RecipeValueError(
            f"'export.profile' has no effect where 'export.prefer' is '{export.prefer}'",
            hint="--prefer latency --set export.profile=FILE, or leave the profile out",
        )


def _check_methods(amax: AmaxSettings, weights: WeightSettings, activations: ActivationSettings) -> None:
    """Refuse a method that searches steps of one size for a float type, which has steps of many."""
    weight, activation = weight_family(weights), activation_family(activations)
    for key, method, family in (
        ("amax.method", amax.method, activation),
        ("amax.weight_method", amax.weight_method, weight),
    ):
        dtype = family.dtype if isinstance(family, ScaledWeights | ScaledActivations) else None
        if method in SEARCHES and dtype in FLOATS:
            raise RecipeValueError(
                f"'{key}' is '{method}', which needs evenly spaced steps, and {dtype} has none",
                hint="choose max or percentile",
            )
    if (
        amax.weight_method not in ("max", "mse")
        and isinstance(weight, ScaledWeights)
        and not weight.symmetric
    ):
        raise RecipeValueError(
            f"'amax.weight_method' is '{amax.weight_method}', which chooses a range around 0, and "
            "blocks with zero points have two ends",
            hint="choose max or mse",
        )


def _check_constant(name: str, value: object) -> None:
    """Refuse what is neither a number nor a boolean nor lists of them that have one shape."""
    if _shape_of(value) is None:
        raise RecipeValueError(
            f"'model.inputs.{name}' is {value!r:.80}, expected a number, true, false, or lists of one length",
            hint="for example: --set model.inputs.sr=16000 or --set model.inputs.scale=[1,2]",
        )


def _shape_of(value: object) -> tuple[int, ...] | None:
    if isinstance(value, (bool, int, float)):
        return ()
    if not isinstance(value, list):
        return None
    shapes = {_shape_of(item) for item in value}
    (inner,) = shapes if len(shapes) == 1 else (None,)
    return None if inner is None else (len(value), *inner)


def _check_override(override: OverrideSettings) -> None:
    if not override.match and not override.op:
        raise RecipeValueError(
            "[[override]] has neither match nor op", hint="write match = '*' to match everything"
        )
    for key in ("amax", "weight_amax"):
        percentile = split_method(getattr(override, key) or "")[1]
        if percentile is not None and not SETTINGS["amax.percentile"].allows(percentile):
            raise RecipeValueError(
                f"'override.{key}' of '{override.match}' is '{getattr(override, key)}', expected a "
                f"percentile {SETTINGS['amax.percentile'].wanted}",
                hint=f"for example: {key} = 'percentile 99.9'",
            )
    # Parameters alone belong to a quantizer that is known once the override is applied.
    if override.weights is not None and override.weights.quantizer is not None:
        weight_family(override.weights, "override.weights")
    if override.activations is not None:
        check_mode(override.activations, "override.activations")
        if override.activations.quantizer is not None:
            activation_family(override.activations, "override.activations")
    if all(value is None for key, value in vars(override).items() if key not in ("match", "op")):
        raise RecipeValueError(
            f"the override of '{override.match or override.op}' sets nothing",
            hint="give it quantize, amax, weight_amax, weights or activations",
        )
