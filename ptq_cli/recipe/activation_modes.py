"""What a recipe may do with the activations of a layer, and when that needs a calibration."""

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.known_names import require_known
from ptq_cli.recipe.chosen_family import OF_MODES
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import ActivationSettings

STATIC, DYNAMIC, FLOAT = "static", "dynamic", "float"
ROW, TENSOR = "row", "tensor"
GRANULARITIES = {
    ROW: "one scale for the values that a result is summed from",
    TENSOR: "one scale and zero point for all values that are run together",
}
"""What shares a scale of activations that become integers at each run."""
MODES = {
    STATIC: "integers in the ranges that the calibration measured",
    DYNAMIC: "integers in ranges that are found at each run: no calibration data are needed",
    FLOAT: "floats: only weights are integers, and no calibration data are needed",
}
"""With what each does."""
WITHOUT_RANGES = (DYNAMIC, FLOAT)
"""Modes that need no range of any activation."""


def mode_of(settings: ActivationSettings) -> str:
    """Return the mode of ``[activations]``.

    Example:
        >>> mode_of(ActivationSettings()), mode_of(ActivationSettings(mode="float"))
        ('static', 'float')
    """
    return settings.mode or STATIC


def granularity_of(settings: ActivationSettings) -> str:
    """Return what shares a scale of activations that become integers at each run.

    Example:
        >>> granularity_of(ActivationSettings(mode="dynamic"))
        'row'
    """
    return settings.granularity or ROW


def needs_ranges(recipe: Recipe) -> bool:
    """Return whether a recipe may ask for an activation whose range has to be measured.

    Example:
        >>> needs_ranges(Recipe()), needs_ranges(Recipe(activations=ActivationSettings(mode="float")))
        (True, False)
    """
    overridden = [item.activations for item in recipe.override if item.activations is not None]
    modes = [recipe.activations.mode or STATIC, *(item.mode for item in overridden if item.mode)]
    return any(mode not in WITHOUT_RANGES for mode in modes)


def check_granularity(recipe: Recipe) -> None:
    """Check that a granularity of activations has a use.

    Raises:
        RecipeValueError: no layer's activations become integers at each run.
    """
    overridden = [item.activations for item in recipe.override if item.activations is not None]
    own = [recipe.activations, *overridden]
    if any(item.granularity for item in own) and not any(item.mode == DYNAMIC for item in own):
        where = "activations" if recipe.activations.granularity else "override.activations"
        raise RecipeValueError(
            f"'{where}.granularity' has no effect: no activations have mode = '{DYNAMIC}'",
            hint=f"leave it out, or write mode = '{DYNAMIC}'",
        )


def check_mode(settings: ActivationSettings, where: str = "activations") -> None:
    """Check the mode of ``[activations]`` or of an override.

    Raises:
        UnknownNameError: there is no such mode.
        RecipeValueError: integers are described beside a mode that has none; or a granularity beside one that
            has no use for it, or that there is none of.

    Example:
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
                hint=f"leave out one of the two; mode = '{STATIC}' makes integers of activations",
            )


def check_overridden(recipe: Recipe) -> None:
    """Check that integers which an override describes are made anywhere.

    Raises:
        RecipeValueError: the mode of all layers has no integers in measured ranges.
    """
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


def _check_granularity(settings: ActivationSettings, where: str) -> None:
    require_known("granularity of activations", settings.granularity or "", GRANULARITIES)
    if settings.mode not in (None, DYNAMIC):
        raise RecipeValueError(
            f"'{where}.granularity' has no effect where '{where}.mode' is '{settings.mode}'",
            hint=f"leave it out, or write mode = '{DYNAMIC}'",
        )
