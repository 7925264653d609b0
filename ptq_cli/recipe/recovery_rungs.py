"""The rungs of recovery that a recipe may name."""

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.known_names import require_known
from ptq_cli.recipe.activation_modes import FLOAT, mode_of, needs_ranges
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import RecoverySettings

EQUALIZE, SMOOTH, RANGES, WEIGHED, ROUND = "equalize", "smooth", "ranges", "weighed", "round"
RUNGS = {
    EQUALIZE: "channels that layers make and read get ranges alike, before the calibration",
    SMOOTH: "the same for channels that normalizations make, and through attention",
    RANGES: "the range of each activation is the one that costs its readers least",
    WEIGHED: "scales, integers and biases are chosen again, each layer by itself, from what it reads",
    ROUND: "scales, integers and biases are chosen again, layer by layer, behind the ones before",
}
"""In the order in which they run, with what each does."""
REWRITING = (EQUALIZE, SMOOTH)
"""They change the float model, so a calibration rests on them; the others change the quantized one."""
OF_WEIGHTS = (WEIGHED, ROUND)
"""Those that change the weights of a quantized model."""
ALL, NONE, AUTO = "all", "none", "auto"
BY_DEFAULT = (EQUALIZE,)
"""What ``auto`` stands for; see docs/recovery.md for how it was measured."""
OF_WEIGHTS_ALONE = (WEIGHED, ROUND)
"""What it stands for if no activation is quantized, and there are data; see docs/weight_only.md."""


def recovery_rungs(settings: RecoverySettings) -> tuple[str, ...]:
    """Return the rungs that are asked for, in the order in which they run.

    Raises:
        UnknownNameError: there is no rung of that name.
        RecipeValueError: ``none`` stands beside others.

    Example:
        >>> recovery_rungs(RecoverySettings(["round", "auto"])), recovery_rungs(RecoverySettings(["none"]))
        (('equalize', 'round'), ())
    """
    for name in settings.rungs:
        require_known("rung of recovery", name, [*RUNGS, ALL, NONE, AUTO])
    if NONE in settings.rungs and len(set(settings.rungs)) > 1:
        raise RecipeValueError(
            f"'recovery.rungs' is {settings.rungs}: none does not go with others",
            hint="name the rungs, or none alone",
        )
    by_default = BY_DEFAULT if AUTO in settings.rungs else ()
    return tuple(
        name for name in RUNGS if name in settings.rungs or name in by_default or ALL in settings.rungs
    )


def rewriting_rungs(settings: RecoverySettings) -> tuple[str, ...]:
    """Return the rungs that change the float model before it is calibrated.

    Example:
        >>> rewriting_rungs(RecoverySettings(["all"])), rewriting_rungs(RecoverySettings(["round"]))
        (('equalize', 'smooth'), ())
    """
    return tuple(name for name in recovery_rungs(settings) if name in REWRITING)


def exporting_rungs(settings: RecoverySettings) -> tuple[str, ...]:
    """Return the rungs that change the quantized model, and need the calibration data again.

    Example:
        >>> exporting_rungs(RecoverySettings(["all"])), exporting_rungs(RecoverySettings([]))
        (('ranges', 'weighed', 'round'), ())
    """
    return tuple(name for name in recovery_rungs(settings) if name not in REWRITING)


def settled_recovery(recipe: Recipe) -> RecoverySettings:
    """Return a recipe's rungs, with what ``auto`` stands for if no activation is quantized.

    Example:
        >>> from ptq_cli.recipe.sections.quantization_sections import ActivationSettings
        >>> from ptq_cli.recipe.sections.calibration_sections import CalibrationSettings
        >>> weights = Recipe(activations=ActivationSettings(mode="float"))
        >>> settled_recovery(weights).rungs, settled_recovery(Recipe()).rungs
        (['none'], ['auto'])
        >>> from dataclasses import replace
        >>> settled_recovery(replace(weights, calibration=CalibrationSettings(data="calib.npz"))).rungs
        ['weighed', 'round']
    """
    rungs = recipe.recovery.rungs
    if AUTO not in rungs or needs_ranges(recipe):
        return recipe.recovery
    alone = mode_of(recipe.activations) == FLOAT and recipe.calibration.data is not None
    by_default = OF_WEIGHTS_ALONE if alone else ()
    named = [name for name in rungs if name != AUTO]
    return RecoverySettings([*named, *(name for name in by_default if name not in named)] or [NONE])
