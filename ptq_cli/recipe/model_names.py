"""Names of quantized models after their form: in a run directory, and where loaders look for them."""

import re

from ptq_cli.core.formats import BYTE
from ptq_cli.recipe.check import weight_family
from ptq_cli.recipe.declaration import DYNAMIC, FLOAT, STATEMENT_SUFFIX
from ptq_cli.recipe.recovery_rungs import mode_of
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import FLOAT16

_INT8, QUANTIZED = "int8", "quantized"
# Forms that Transformers.js and Optimum look for under another name than the form's own.
LOADED_AS = {DYNAMIC: QUANTIZED, "q8": QUANTIZED}
# By the suffix of a file's name, the dtype with which Transformers.js loads it.
LOADER_DTYPES = {QUANTIZED: "q8", **{name: name for name in ("fp16", _INT8, "uint8", "q4", "q4f16", "bnb4")}}
# Quantized models of others, as these two name them.
KNOWN_SUFFIXES = (*LOADER_DTYPES, *("q8", "q8f16", "uint8f16", "q2", "q1", "q2f16"))
MODEL_STEM = "model"  # of a model alone
_OWN = re.compile(
    rf"({MODEL_STEM}_(?:int8|{DYNAMIC}|q\d|w\d(?:a\d+)?|fp[48])(?:f16)?"
    r"|model\.(?:int8|w[2-7]|fp[48]))"  # names that ptq gave until they were the ecosystem's
    rf"(?:\.onnx(?:\.data)?|{re.escape(STATEMENT_SUFFIX)})"
)


def form_of(recipe: Recipe) -> str:
    """The form of the models of a recipe, which is the suffix of their names.

    Source:
        Transformers.js, ``src/utils/dtypes.js``, has ``int8``, ``q4`` and ``q4f16``. What it has no name for
        is called by the bits of weights and activations.

    Example:
        >>> from ptq_cli.recipe.sections import ActivationSettings, WeightSettings
        >>> alone = ActivationSettings(mode="float")
        >>> form_of(Recipe(weights=WeightSettings(bits=4), activations=alone)), form_of(Recipe())
        ('q4', 'int8')
        >>> form_of(Recipe(activations=ActivationSettings(mode="dynamic")))
        'dynamic'
        >>> form_of(Recipe(weights=WeightSettings(bits=4)))
        'w4a8'
    """
    weights, activations = recipe.weights, recipe.activations
    family, mode = weight_family(weights), mode_of(activations)
    bits = family.bits
    if weights.dtype is not None:
        return f"fp{bits}"
    half = "f16" if recipe.quantization.float_type == FLOAT16 else ""
    if family.float_reason:
        return f"w{bits}{half}"  # a codebook, which no loader has a name for
    if mode == FLOAT:
        return f"q{bits}{half}"
    if mode == DYNAMIC and bits == BYTE and not half:
        return DYNAMIC
    wide = 16 if "16" in (activations.dtype or "") else activations.bits or BYTE
    return f"{_INT8}{half}" if bits == wide == BYTE else f"w{bits}a{wide}{half}"


def suffix_of(recipe: Recipe, *, by_default: bool = False) -> str:
    """The suffix under which Transformers.js and Optimum look for the models of a recipe.

    With ``by_default``, 8-bit integers get the one that both look for if nobody names another.

    Source:
        Transformers.js, ``src/utils/dtypes.js``; Optimum, ``ORTQuantizer.quantize(file_suffix="quantized")``.

    Example:
        >>> from ptq_cli.recipe.sections import ActivationSettings
        >>> suffix_of(Recipe()), suffix_of(Recipe(activations=ActivationSettings(mode="dynamic")))
        ('int8', 'quantized')
        >>> suffix_of(Recipe(), by_default=True)
        'quantized'
    """
    form = form_of(recipe)
    return QUANTIZED if by_default and form == _INT8 else LOADED_AS.get(form, form)


def model_name(suffix: str, stem: str = MODEL_STEM) -> str:
    """The name of a quantized model's file.

    Example:
        >>> model_name("q4"), model_name("int8", "decoder_model")
        ('model_q4.onnx', 'decoder_model_int8.onnx')
    """
    return f"{stem}_{suffix}.onnx"


def own_model(file_name: str) -> str | None:
    """The model that a file of a run directory belongs to, if ptq gave it its name; None otherwise.

    Example:
        >>> own_model("model_int8.onnx"), own_model("model_q4.onnx.data"), own_model("model_mine.onnx")
        ('model_int8.onnx', 'model_q4.onnx', None)
        >>> own_model("model.int8.onnx"), own_model("model.float.onnx")
        ('model.int8.onnx', None)
        >>> own_model("model_q4.intoto.json")
        'model_q4.onnx'
    """
    found = _OWN.fullmatch(file_name)
    return f"{found[1]}.onnx" if found is not None else None
