"""The quantizers that a recipe may name, with their parameters; each family's are one frozen dataclass.

This is their one table, without PyTorch: the recipe is checked against it, and the documentation and
``ptq quantizers`` are made from it. What the families compute is in ``ptq_cli.quantizers``.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.formats import FLOATS
from ptq_cli.core.known_names import require_known
from ptq_cli.recipe.sections import ActivationSettings, WeightSettings

POWER_OF_TWO = "auto_po2"
PLAIN = "none"
CHANNEL, TENSOR = "channel", "tensor"
MOST_OCTAVES = 60
"""Of a grid that is given: the product of two such scales, which a bias has, is then a normal float32."""


def _rule(holds: Callable[[Any], bool], wanted: str) -> dict[str, Any]:
    return {"holds": holds, "wanted": wanted}


def _whole(low: int, high: int) -> dict[str, Any]:
    return _rule(lambda value: value is None or low <= value <= high, f"{low} to {high}")


def _one_of(*names: str) -> dict[str, Any]:
    return _rule(lambda value: value is None or value in names, " or ".join(f"'{name}'" for name in names))


DTYPES = ("uint8", "int8", "uint16", "int16", *FLOATS)
OTHER_THAN_BYTES = DTYPES[2:]
STEP = _rule(
    lambda value: value is None or 2.0**-MOST_OCTAVES <= value <= 2.0**MOST_OCTAVES,
    f"positive, 2^-{MOST_OCTAVES} to 2^{MOST_OCTAVES}",
)
INTEGER = _whole(-MOST_OCTAVES, MOST_OCTAVES)


@dataclass(frozen=True, kw_only=True)
class ScaledWeights:
    """Integers spread evenly over [-amax, amax], with a scale for each output channel.

    Attributes:
        bits: bits per weight; the most negative integer is not used. If not set, as many as the target has.
        granularity: one scale per output ``"channel"``, or one scale for the ``"tensor"``.
        block_size: number of values along an axis that share a scale; it must divide the size of the axis.
            Blocks are computed in float. If not set, there are no blocks.
        axis: axis of the scales, if the target reads scales along another axis than that of the output
            channels; with blocks, the axis that is divided, by default that of the input channels.
        dtype: a float type instead of integers, if the target has it: ``"float8e4m3fn"`` or ``"float4e2m1"``.
            The largest value of the type then stands for amax.
        symmetric: whether zero points are 0. Only blocks that a kernel reads beside float activations may
            have others.
    """

    bits: int = field(default=8, metadata=_whole(2, 8))
    granularity: str = field(default=CHANNEL, metadata=_one_of(TENSOR, CHANNEL))
    block_size: int | None = field(default=None, metadata=_whole(2, 1 << 20))
    axis: int | None = field(default=None, metadata=_whole(-8, 7))
    dtype: str | None = field(default=None, metadata=_one_of(*FLOATS))
    symmetric: bool = field(default=True, metadata=_rule(lambda _: True, "true or false"))


@dataclass(frozen=True)
class FixedPointWeights:
    """Integers times powers of two, for hardware that shifts instead of multiplying.

    Attributes:
        bits: bits per weight, with the sign.
        alpha: ``"none"``, or ``"auto_po2"`` to find the power of two for each output channel by least
            squares. That clips large values, and is better with 4 bits than with 8.
        integer: with alpha ``"none"``, bits before the binary point, the same for all channels; if not set,
            as few as each output channel's amax needs.
    """

    bits: int = field(default=8, metadata=_whole(2, 8))
    alpha: str = field(default=PLAIN, metadata=_one_of(PLAIN, POWER_OF_TWO))
    integer: int | None = field(default=None, metadata=INTEGER)


@dataclass(frozen=True)
class DorefaWeights:
    """2^bits levels from -amax to amax, ends included and 0 not, with an amax for each output channel.

    Attributes:
        bits: bits per weight. With 8 bits, its odd integers would not fit into int8.
    """

    bits: int = field(default=4, metadata=_whole(2, 7))


@dataclass(frozen=True)
class StepWeights:
    """Multiples of one step for the whole weight, saturating at the ends of the integers.

    Attributes:
        bits: bits per weight.
        step: distance between two values; if not set, the largest integer represents amax.
    """

    bits: int = field(default=8, metadata=_whole(2, 8))
    step: float | None = field(default=None, metadata=STEP)


@dataclass(frozen=True)
class CenterWeights:
    """Each value becomes the nearest of a few centers that k-means found: an index and a codebook.

    Attributes:
        centers: number of centers; an index takes 4 bits for up to 16 centers, and 8 bits for more.
        granularity: one codebook for the ``"tensor"``, or one per output ``"channel"``, which is more precise
            and takes more space.
        seed: seed of the random numbers that choose the first centers.
        restarts: number of times that k-means starts from new centers; the best result is used.
    """

    centers: int = field(default=16, metadata=_whole(2, 256))
    granularity: str = field(default=TENSOR, metadata=_one_of(TENSOR, CHANNEL))
    seed: int = field(default=0, metadata=_rule(lambda value: 0 <= value < 2**63, "0 or more"))
    restarts: int = field(default=4, metadata=_whole(1, 1000))

    @property
    def bits(self) -> int:
        """How many bits an index takes in the file."""
        return 4 if self.centers <= 16 else 8


@dataclass(frozen=True)
class ScaledActivations:
    """Integers spread evenly over the calibrated range, with the zero point that the target has.

    Attributes:
        dtype: integer type, ``"float8e4m3fn"`` or ``"float4e2m1"``, if the target has it; if not set, the
            target's own.
        symmetric: whether the zero point is 0, or the middle of an unsigned type; if not set, as the target
            needs it.
        bits: bits per activation, for integers of 8 bits. With fewer than 8, a Clip keeps the integers within
            these bits; if not set, as many as the type has.
    """

    dtype: str | None = field(default=None, metadata=_one_of(*DTYPES))
    symmetric: bool | None = field(default=None, metadata=_rule(lambda _: True, "true or false"))
    bits: int | None = field(default=None, metadata=_whole(2, 8))


@dataclass(frozen=True)
class FixedPointActivations:
    """Integers times a power of two; the zero point is 0, or the middle where there are negative values.

    Attributes:
        integer: bits before the binary point, the same for all tensors; if not set, as few as each tensor's
            amax needs.
    """

    integer: int | None = field(default=None, metadata=INTEGER)


@dataclass(frozen=True)
class StepActivations:
    """Multiples of a step, saturating; the zero point is 0, or the middle where there are negative values.

    Attributes:
        step: distance between two values, the same for all tensors; if not set, the largest integer
            represents each tensor's amax.
    """

    step: float | None = field(default=None, metadata=STEP)


WeightFamily = ScaledWeights | FixedPointWeights | DorefaWeights | StepWeights | CenterWeights
ActivationFamily = ScaledActivations | FixedPointActivations | StepActivations


@dataclass(frozen=True)
class FamilySettings:
    """What a recipe may say of a quantizer.

    Attributes:
        weights: its parameters for weights.
        activations: its parameters for activations, or None where it takes none.
        refusal: why it takes none; empty where it does.
    """

    weights: type[WeightFamily]
    activations: type[ActivationFamily] | None
    refusal: str = ""


FAMILY_SETTINGS: Mapping[str, FamilySettings] = {
    "scaled": FamilySettings(ScaledWeights, ScaledActivations),
    "fixed_point": FamilySettings(FixedPointWeights, FixedPointActivations),
    "dorefa": FamilySettings(
        DorefaWeights,
        None,
        "0 is not one of its levels, so QuantizeLinear cannot compute them",
    ),
    "step": FamilySettings(StepWeights, StepActivations),
    "centers": FamilySettings(
        CenterWeights,
        None,
        "each value would have to be compared with every center while the model runs, and ONNX has no "
        "operator for that",
    ),
}


# The quantizer that a recipe names becomes a family with its parameters, checked.


OF_MODES = ("mode", "granularity")
"""Keys of ``[activations]`` that are not parameters of a quantizer."""
DEFAULT_QUANTIZER = "scaled"
FOUR_BITS = 4


def weight_family(settings: WeightSettings, where: str = "weights") -> WeightFamily:
    """Return the family that ``[weights]`` names, with its parameters.

    Raises:
        UnknownNameError: there is no quantizer of that name.
        RecipeKeyError: it has no such parameter.
        RecipeValueError: a value is out of range.

    Example:
        >>> weight_family(WeightSettings(quantizer="dorefa", bits=3))
        DorefaWeights(bits=3)
        >>> weight_family(WeightSettings()).bits
        8
    """
    name = settings.quantizer or DEFAULT_QUANTIZER
    require_known("quantizer", name, FAMILY_SETTINGS)
    family: WeightFamily = _filled(FAMILY_SETTINGS[name].weights, settings, name, where)
    if isinstance(family, FixedPointWeights) and family.integer is not None and family.alpha != PLAIN:
        raise RecipeValueError(
            f"'{where}.integer' is {family.integer}, but alpha '{family.alpha}' finds the point itself",
            hint=f"leave integer out, or write alpha = '{PLAIN}'",
        )
    return _checked(family, settings.bits, where) if isinstance(family, ScaledWeights) else family


def _checked(family: ScaledWeights, asked_bits: int | None, where: str) -> ScaledWeights:
    """Return the scaled family, with the bits of its float type if it has one."""
    if not family.symmetric and family.block_size is None:
        raise RecipeValueError(
            f"'{where}.symmetric' is false, and only weights in blocks may have zero points",
            hint=f"set '{where}.block_size', such as 32, or leave symmetric out",
        )
    if family.dtype is None:
        return family
    bits = FLOATS[family.dtype].bits
    if asked_bits not in (None, bits):
        raise RecipeValueError(
            f"'{where}.bits' is {asked_bits}, but '{where}.dtype' is '{family.dtype}', with {bits}",
            hint="leave bits out",
        )
    if family.block_size is not None:
        raise RecipeValueError(
            f"'{where}.block_size' is {family.block_size}, but a {family.dtype} tensor "
            f"{'always has blocks of 16' if bits == FOUR_BITS else 'has no blocks'}",
            hint="leave block_size out",
        )
    return replace(family, bits=bits)


def activation_family(settings: ActivationSettings, where: str = "activations") -> ActivationFamily:
    """Return the family that ``[activations]`` names, with its parameters.

    Raises:
        UnknownNameError: there is no quantizer of that name.
        RecipeKeyError: it has no such parameter.
        RecipeValueError: it takes no activations, and the message says why; or a value is out of range.

    Example:
        >>> activation_family(ActivationSettings(quantizer="fixed_point"))
        FixedPointActivations(integer=None)
    """
    name = settings.quantizer or DEFAULT_QUANTIZER
    require_known("quantizer", name, FAMILY_SETTINGS)
    kind = FAMILY_SETTINGS[name].activations
    if kind is None:
        known = [item for item, family in FAMILY_SETTINGS.items() if family.activations is not None]
        raise RecipeValueError(
            f"'{where}.quantizer' is '{name}', which is only for weights: {FAMILY_SETTINGS[name].refusal}",
            hint=f"activations take: {', '.join(known)}",
        )
    found: ActivationFamily = _filled(kind, settings, name, where)
    if isinstance(found, ScaledActivations) and found.bits is not None and found.dtype in OTHER_THAN_BYTES:
        raise RecipeValueError(
            f"'{where}.bits' is {found.bits}, but '{where}.dtype' is '{found.dtype}': only integers of 8 "
            "bits are kept within fewer bits",
            hint=f"leave out one of the two, or write dtype = '{DTYPES[0]}'",
        )
    return found


def _filled(kind: type[Any], settings: Any, name: str, where: str) -> Any:
    left_out = ("quantizer", *(OF_MODES if isinstance(settings, ActivationSettings) else ()))
    own = {key: value for key, value in vars(settings).items() if key not in left_out}
    given = {key: value for key, value in own.items() if value is not None}
    known = {item.name: item for item in dataclasses.fields(kind)}
    for key, value in given.items():
        if key not in known:
            raise RecipeKeyError(
                f"'{where}.{key}' is not a parameter of quantizer '{name}'",
                hint=f"'{name}' takes: {', '.join(known)}" if known else f"'{name}' takes none here",
            )
        rule = known[key].metadata
        if (isinstance(value, float) and math.isnan(value)) or not rule["holds"](value):
            shown = f"'{value}'" if isinstance(value, str) else value
            raise RecipeValueError(
                f"'{where}.{key}' is {shown}, quantizer '{name}' expects {rule['wanted']}",
                hint=f"correct '{where}.{key}'",
            )
    return kind(**given)


def overridden(settings: Any, override: Any) -> Any:
    """Return ``[weights]`` or ``[activations]`` as an override changes them.

    Edge case:
        An override that names a quantizer replaces all settings: those of another family do not apply to it.

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
    """Return the name of a family.

    Example:
        >>> from ptq_cli.recipe.quantizer_settings import DorefaWeights, StepActivations
        >>> family_name(DorefaWeights()), family_name(StepActivations())
        ('dorefa', 'step')
    """
    return next(
        name for name, item in FAMILY_SETTINGS.items() if type(family) in (item.weights, item.activations)
    )


# How the quantizers that a recipe names read in reports: a few words each.


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
