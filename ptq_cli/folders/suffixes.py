"""Suffixes of the names of quantized files, as the libraries that load them expect."""

from ptq_cli.recipe.known_modes import DYNAMIC, FLOAT
from ptq_cli.recipe.recovery_rungs import mode_of
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import FLOAT16

QUANTIZED = "quantized"
BYTE = 8


def suffix_of(recipe: Recipe) -> str:
    """The suffix for what a recipe makes: that under which Transformers.js looks for such a model.

    Its names are ``quantized`` for dynamic ranges and for weights of 8 bits, ``q4`` and ``q4f16`` for weights
    of 4 bits, ``int8`` for integers. What it has no name for is called by its bits.

    Source:
        Transformers.js, ``src/utils/dtypes.js``; Optimum, ``ORTQuantizer.quantize(file_suffix="quantized")``.

    Example:
        >>> from ptq_cli.recipe.sections import ActivationSettings, WeightSettings
        >>> alone = ActivationSettings(mode="float")
        >>> suffix_of(Recipe(weights=WeightSettings(bits=4), activations=alone)), suffix_of(Recipe())
        ('q4', 'int8')
        >>> suffix_of(Recipe(activations=ActivationSettings(mode="dynamic")))
        'quantized'
        >>> suffix_of(Recipe(weights=WeightSettings(bits=4)))
        'w4a8'
    """
    weights, activations = recipe.weights, recipe.activations
    bits = weights.bits or BYTE
    mode = mode_of(activations)
    if weights.dtype is not None:
        return "fp8" if "float8" in weights.dtype else "fp4"
    half = "f16" if recipe.quantization.float_type == FLOAT16 else ""
    if mode == FLOAT:
        return QUANTIZED if bits == BYTE and not half else f"q{bits}{half}"
    if mode == DYNAMIC and bits == BYTE:
        return QUANTIZED
    wide = "16" in (activations.dtype or "")
    return f"int8{half}" if bits == BYTE and not wide else f"w{bits}a{16 if wide else BYTE}{half}"
