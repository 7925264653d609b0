"""Modes of activations and rungs of recovery: what a recipe asks for, checked."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.words import require_known
from ptq_cli.recipe.declaration import (
    ALL,
    AUTO,
    BITS,
    DYNAMIC,
    EQUALIZE,
    FLOAT,
    GRANULARITIES,
    MODES,
    NONE,
    ROUND,
    ROW,
    RUNGS,
    SMOOTH,
    STATIC,
)

if TYPE_CHECKING:
    from ptq_cli.recipe.schema import Recipe
    from ptq_cli.recipe.sections import ActivationSettings, RecoverySettings


WITHOUT_RANGES = (DYNAMIC, FLOAT)  # Modes that need no range of any activation.
OF_MODES = ("mode", "granularity")  # Keys of ``[activations]`` that are not parameters of a quantizer.


def mode_of(settings: "ActivationSettings") -> str:
    """The mode of ``[activations]``.

    Example:
        >>> from ptq_cli.recipe.sections import ActivationSettings
        >>> mode_of(ActivationSettings()), mode_of(ActivationSettings(mode="float"))
        ('static', 'float')
    """
    return settings.mode or STATIC


def granularity_of(settings: "ActivationSettings") -> str:
    """Granularity of the scales of activations that become integers at each run.

    Example:
        >>> from ptq_cli.recipe.sections import ActivationSettings
        >>> granularity_of(ActivationSettings(mode="dynamic"))
        'row'
    """
    return settings.granularity or ROW


def needs_ranges(recipe: "Recipe") -> bool:
    """Whether a recipe may ask for an activation whose range has to be measured."""
    overridden = [item.activations for item in recipe.override if item.activations is not None]
    modes = [recipe.activations.mode or STATIC, *(item.mode for item in overridden if item.mode)]
    return any(mode not in WITHOUT_RANGES for mode in modes)


def check_granularity(recipe: "Recipe") -> None:
    """Check that a granularity of activations has a use."""
    overridden = [item.activations for item in recipe.override if item.activations is not None]
    own = [recipe.activations, *overridden]
    if any(item.granularity for item in own) and not any(item.mode == DYNAMIC for item in own):
        where = "activations" if recipe.activations.granularity else "override.activations"
        raise RecipeValueError(
            f"'{where}.granularity' has no effect: no activations have mode = '{DYNAMIC}'",
            hint=f"leave it out, or write mode = '{DYNAMIC}'",
        )


def check_mode(settings: "ActivationSettings", where: str = "activations") -> None:
    """Check the mode of ``[activations]`` or of an override.

    Example:
        >>> from ptq_cli.recipe.sections import ActivationSettings
        >>> check_mode(ActivationSettings(mode="float"))
    """
    if settings.granularity is not None:
        _check_granularity(settings, where)
    if settings.mode is None:
        return
    require_known("mode of activations", settings.mode, MODES)
    if settings.mode not in WITHOUT_RANGES:
        return
    for key, value in vars(settings).items():
        if key not in OF_MODES and value is not None:
            raise RecipeValueError(
                f"'{where}.{key}' has no effect where '{where}.mode' is '{settings.mode}'",
                hint=f"leave out one of the two; mode = '{STATIC}' quantizes activations",
            )


def check_overridden(recipe: "Recipe") -> None:
    """Check that integers which an override describes are made anywhere."""
    overridden = [item.activations for item in recipe.override if item.activations is not None]
    mode = mode_of(recipe.activations)
    if mode not in WITHOUT_RANGES or any(item.mode == STATIC for item in overridden):
        return
    for settings in overridden:
        keys = [key for key, value in vars(settings).items() if value is not None and key not in OF_MODES]
        if keys and settings.mode is None:
            raise RecipeValueError(
                f"'override.activations.{keys[0]}' has no effect where 'activations.mode' is '{mode}'",
                hint=f"write mode = '{STATIC}' beside it, or leave it out",
            )


def _check_granularity(settings: "ActivationSettings", where: str) -> None:
    require_known("granularity of activations", settings.granularity or "", GRANULARITIES)
    if settings.mode not in (None, DYNAMIC):
        raise RecipeValueError(
            f"'{where}.granularity' has no effect where '{where}.mode' is '{settings.mode}'",
            hint=f"leave it out, or write mode = '{DYNAMIC}'",
        )


# They change the float model, so a calibration rests on them; the others change the quantized one.
REWRITING = (EQUALIZE, SMOOTH)
_BY_DEFAULT = (EQUALIZE,)  # What ``auto`` stands for; see docs/recovery.md for how it was measured
OF_EACH_RUN = (EQUALIZE, SMOOTH)  # What it stands for if ranges are found at each run, and there are data
OF_WEIGHTS_ALONE = (BITS, ROUND)


def recovery_rungs(settings: "RecoverySettings") -> tuple[str, ...]:
    """The rungs that are asked for, in the order in which they run; ``auto`` names none of them.

    Example:
        >>> from ptq_cli.recipe.sections import RecoverySettings
        >>> recovery_rungs(RecoverySettings(["round", "ranges"])), recovery_rungs(RecoverySettings(["none"]))
        (('ranges', 'round'), ())
    """
    for name in settings.rungs:
        require_known("rung of recovery", name, [*RUNGS, ALL, NONE, AUTO])
    if NONE in settings.rungs and len(set(settings.rungs)) > 1:
        raise RecipeValueError(
            f"'recovery.rungs' is {settings.rungs}: 'none' cannot be combined with other rungs",
            hint="list rungs, or 'none' alone",
        )
    return tuple(name for name in RUNGS if name in settings.rungs or ALL in settings.rungs)


def default_rungs(recipe: "Recipe") -> tuple[str, ...]:
    """The rungs that change the float model although nobody named them."""
    settings = recipe.recovery
    if AUTO not in settings.rungs or ALL in settings.rungs:
        return ()
    by_default = OF_EACH_RUN if mode_of(recipe.activations) == DYNAMIC else _BY_DEFAULT
    return tuple(name for name in by_default if name not in settings.rungs)


def rewriting_rungs(recipe: "Recipe") -> tuple[str, ...]:
    """The rungs that change the float model before it is calibrated.

    Example:
        >>> from ptq_cli.recipe.schema import Recipe
        >>> from ptq_cli.recipe.sections import ActivationSettings, RecoverySettings
        >>> rewriting_rungs(Recipe(recovery=RecoverySettings(["all"]))), rewriting_rungs(Recipe())
        (('equalize', 'smooth'), ('equalize',))
        >>> rewriting_rungs(Recipe(activations=ActivationSettings(mode="dynamic")))
        ('equalize', 'smooth')
    """
    asked = {*recipe.recovery.rungs, *default_rungs(recipe)}
    return tuple(name for name in REWRITING if name in asked or ALL in asked)


def exporting_rungs(settings: "RecoverySettings") -> tuple[str, ...]:
    """The rungs that change the quantized model, and need the calibration data again.

    Example:
        >>> from ptq_cli.recipe.sections import RecoverySettings
        >>> exporting_rungs(RecoverySettings(["all"])), exporting_rungs(RecoverySettings([]))
        (('ranges', 'float', 'bits', 'round'), ())
    """
    return tuple(name for name in recovery_rungs(settings) if name not in REWRITING)


def settled_recovery(recipe: "Recipe") -> "RecoverySettings":
    """A recipe's rungs, with what ``auto`` stands for if no activation is quantized.

    Example:
        >>> from ptq_cli.recipe.schema import Recipe
        >>> from ptq_cli.recipe.sections import ActivationSettings, CalibrationSettings
        >>> weights = Recipe(activations=ActivationSettings(mode="float"))
        >>> settled_recovery(weights).rungs, settled_recovery(Recipe()).rungs
        (['none'], ['auto'])
        >>> from dataclasses import replace
        >>> settled_recovery(replace(weights, calibration=CalibrationSettings(data="calib.npz"))).rungs
        ['bits', 'round']
    """
    rungs, has_data = recipe.recovery.rungs, recipe.calibration.data is not None
    is_dynamic = mode_of(recipe.activations) == DYNAMIC
    if AUTO not in rungs or needs_ranges(recipe) or (is_dynamic and has_data):
        return recipe.recovery
    by_default = OF_WEIGHTS_ALONE if has_data and not is_dynamic else ()
    named = [name for name in rungs if name != AUTO]
    rungs = [*named, *(name for name in by_default if name not in named)] or [NONE]
    return replace(recipe.recovery, rungs=rungs)
