"""What a recipe may do with the activations of a layer, and when that needs a calibration."""

from ptq_cli.core.errors import RecipeValueError, require_known
from ptq_cli.recipe.schema import ActivationSettings, Recipe

STATIC, FLOAT = "static", "float"
MODES = {
    STATIC: "integers in the ranges that the calibration measured",
    FLOAT: "floats: only weights are integers, and no calibration data are needed",
}
"""With what each does."""
WITHOUT_RANGES = (FLOAT,)
"""Modes that need no range of any activation."""


def mode_of(settings: ActivationSettings) -> str:
    """Return the mode of ``[activations]``.

    Example:
        >>> mode_of(ActivationSettings()), mode_of(ActivationSettings(mode="float"))
        ('static', 'float')
    """
    return settings.mode or STATIC


def needs_ranges(recipe: Recipe) -> bool:
    """Return whether a recipe may ask for an activation whose range has to be measured.

    Example:
        >>> needs_ranges(Recipe()), needs_ranges(Recipe(activations=ActivationSettings(mode="float")))
        (True, False)
    """
    overridden = [item.activations for item in recipe.override if item.activations is not None]
    modes = [recipe.activations.mode or STATIC, *(item.mode for item in overridden if item.mode)]
    return any(mode not in WITHOUT_RANGES for mode in modes)


def check_mode(settings: ActivationSettings, where: str = "activations") -> None:
    """Check the mode of ``[activations]`` or of an override.

    Raises:
        UnknownNameError: there is no such mode.
        RecipeValueError: integers are described beside a mode that has none.

    Example:
        >>> check_mode(ActivationSettings(mode="float"))
    """
    if settings.mode is None:
        return
    require_known("mode of activations", settings.mode, MODES)
    if settings.mode not in WITHOUT_RANGES:
        return
    for key, value in vars(settings).items():
        if key != "mode" and value is not None:
            raise RecipeValueError(
                f"'{where}.{key}' has no effect where '{where}.mode' is '{settings.mode}'",
                hint=f"leave out one of the two; mode = '{STATIC}' makes integers of activations",
            )
