"""The rungs of recovery that a recipe may name."""

from ptq_cli.core.errors import RecipeValueError, require_known
from ptq_cli.recipe.schema import RecoverySettings

RANGES, WEIGHED, ROUND = "ranges", "weighed", "round"
RUNGS = {
    RANGES: "the range of each activation is the one that costs its readers least",
    WEIGHED: "scales, integers and biases are chosen again, each layer by itself, from what it reads",
    ROUND: "scales, integers and biases are chosen again, layer by layer, behind the ones before",
}
"""In the order in which they run, with what each does."""
OF_WEIGHTS = (WEIGHED, ROUND)
"""Those that change the weights of a quantized model."""
ALL, NONE = "all", "none"


def recovery_rungs(settings: RecoverySettings) -> tuple[str, ...]:
    """Return the rungs that are asked for, in the order in which they run.

    Raises:
        UnknownNameError: there is no rung of that name.
        RecipeValueError: ``none`` stands beside others.

    Example:
        >>> recovery_rungs(RecoverySettings(["all"])), recovery_rungs(RecoverySettings(["none"]))
        (('ranges', 'weighed', 'round'), ())
    """
    for name in settings.rungs:
        require_known("rung of recovery", name, [*RUNGS, ALL, NONE])
    if NONE in settings.rungs and len(set(settings.rungs)) > 1:
        raise RecipeValueError(
            f"'recovery.rungs' is {settings.rungs}: none does not go with others",
            hint="name the rungs, or none alone",
        )
    return tuple(name for name in RUNGS if name in settings.rungs or ALL in settings.rungs)
