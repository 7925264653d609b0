"""How the quantizers that a recipe names read in reports: a few words each."""

from ptq_cli.recipe.chosen_family import family_name
from ptq_cli.recipe.quantizer_settings import (
    TENSOR,
    ActivationFamily,
    CenterWeights,
    ScaledActivations,
    ScaledWeights,
    WeightFamily,
)


def describe_weights(family: WeightFamily) -> str:
    """Say what a weight is stored as.

    Example:
        >>> from ptq_cli.recipe.quantizer_settings import DorefaWeights
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
        >>> describe_activations(ScaledActivations()), describe_activations(ScaledActivations("int16", True))
        ('scaled', 'scaled, int16, symmetric')
    """
    parts = [family_name(family)]
    if isinstance(family, ScaledActivations):
        parts += [f"{family.bits} bits"] if family.bits is not None else []
        parts += [family.dtype] if family.dtype else []
        parts += [] if family.symmetric is None else ["symmetric" if family.symmetric else "asymmetric"]
    return ", ".join(parts)
