"""The quantizers that a recipe may name: each is declared here, with its parameters, once.

This is their one table, without PyTorch: sections, checks and pages are made from it, and what other rooms
ask of a family without computing anything is answered here. What they compute is in ``ptq_cli.quantizers``,
and how weights are stored in ``ptq_cli.placement.weight_families``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import FLOATS
from ptq_cli.recipe.declaration import TENSOR, Setting, setting, settings_of

POWER_OF_TWO = "auto_po2"
PLAIN = "none"
CHANNEL = "channel"
_DTYPES = ("uint8", "int8", "uint16", "int16", *FLOATS)
OTHER_THAN_BYTES = _DTYPES[2:]
FOUR_BITS = 4
# Octaves of a step that is given: the product of two such scales, which a bias has, is then a normal float32.
MOST_OCTAVES = 60
STEP: dict[str, Any] = {
    "low": 2.0**-MOST_OCTAVES,
    "high": 2.0**MOST_OCTAVES,
    "wanted": f"positive, 2^-{MOST_OCTAVES} to 2^{MOST_OCTAVES}",
}
_INTEGER: dict[str, Any] = {"low": -MOST_OCTAVES, "high": MOST_OCTAVES}
_BITS = "Bits per weight."
EVEN_STEP = "Distance between two values; if not set, the largest integer represents amax."


class _OfWeights:
    """What other rooms ask of a family's weights: most have even integers that a kernel multiplies."""

    if TYPE_CHECKING:

        @property
        def bits(self) -> int:
            """Bits per weight."""

    # Where the recipe says nothing of bits, those of the target's integers hold.
    takes_bits_of_target: ClassVar[bool] = True
    # How many bits an integer needs beyond those that its number of levels has.
    extra_bits: ClassVar[int] = 0
    powers_of_two: ClassVar[bool] = False  # Scales are powers of two, which an export proves.

    @property
    def is_even(self) -> bool:
        """Whether integers are evenly spaced, so that recovery may choose others."""
        return not self.extra_bits

    @property
    def float_reason(self) -> str:
        """Why no integer kernel takes the weight; empty if one may."""
        return ""

    def in_words(self, name: str) -> str:
        """Say what a weight is stored as."""
        return f"{name}, {self.bits} bits"

    def checked(self, where: str, asked_bits: int | None) -> Self:  # noqa: ARG002 - one interface
        """The family if its parameters go together; ``asked_bits`` are the recipe's own."""
        return self


@dataclass(frozen=True, kw_only=True)
class ScaledWeights(_OfWeights):
    """Integers spread evenly over [-amax, amax], with a scale for each output channel."""

    bits: int = setting(8, _BITS, low=2, high=8)
    granularity: str = setting(
        CHANNEL,
        "One scale, or one set of centers, per output channel or per tensor.",
        choices=(TENSOR, CHANNEL),
    )
    block_size: int | None = setting(
        None,
        "Number of values along the axis of input channels that share a scale; it must divide the axis.",
        low=2,
        high=1 << 20,
    )
    dtype: str | None = setting(
        None, "Float type instead of integers, if the target has it.", choices=(*FLOATS,)
    )
    symmetric: bool = setting(True, "Whether zero points are 0; only blocks can have others.")

    @property
    def is_even(self) -> bool:
        """Floats are not."""
        return self.dtype is None

    def in_words(self, name: str) -> str:
        """Say what a weight is stored as."""
        if self.dtype is not None:
            return f"{name}, {self.dtype}"
        if self.block_size is not None:
            zeros = "" if self.symmetric else " with zero points"
            return f"{name}, {self.bits} bits in blocks of {self.block_size}{zeros}"
        return f"{name}, {self.bits} bits{', one scale' if self.granularity == TENSOR else ''}"

    def checked(self, where: str, asked_bits: int | None) -> Self:
        """The family, with the bits of its float type if it has one."""
        if not self.symmetric and self.block_size is None:
            raise RecipeValueError(
                f"'{where}.symmetric' is false, and only weights in blocks may have zero points",
                hint=f"set '{where}.block_size', such as 32, or leave symmetric out",
            )
        if self.dtype is None:
            return self
        bits = FLOATS[self.dtype].bits
        if asked_bits not in (None, bits):
            raise RecipeValueError(
                f"'{where}.bits' is {asked_bits}, but '{where}.dtype' is '{self.dtype}', with {bits}",
                hint="leave bits out",
            )
        if self.block_size is not None:
            raise RecipeValueError(
                f"'{where}.block_size' is {self.block_size}, but a {self.dtype} tensor "
                f"{'always has blocks of 16' if bits == FOUR_BITS else 'has no blocks'}",
                hint="leave block_size out",
            )
        return replace(self, bits=bits)


@dataclass(frozen=True)
class FixedPointWeights(_OfWeights):
    """Integers times powers of two, for hardware that shifts instead of multiplying."""

    powers_of_two = True

    bits: int = setting(8, _BITS, low=2, high=8)
    alpha: str = setting(
        PLAIN,
        f"Scale factor: `{POWER_OF_TWO}` finds a power of two per output channel by least squares, which "
        f"suits 4 bits more than 8; `{PLAIN}` uses `integer`.",
        choices=(PLAIN, POWER_OF_TWO),
    )
    integer: int | None = setting(
        None, "Bits before the binary point; if not set, as few as amax needs.", **_INTEGER
    )

    def checked(self, where: str, asked_bits: int | None) -> Self:  # noqa: ARG002 - one interface
        """The family; only one of alpha and integer can say where the point is."""
        if self.integer is not None and self.alpha != PLAIN:
            raise RecipeValueError(
                f"'{where}.integer' is {self.integer}, but alpha '{self.alpha}' finds the point itself",
                hint=f"leave integer out, or write alpha = '{PLAIN}'",
            )
        return self


@dataclass(frozen=True)
class DorefaWeights(_OfWeights):
    """2^bits levels from -amax to amax, ends included and 0 not, with an amax for each output channel."""

    takes_bits_of_target = False
    extra_bits = 1  # The levels are odd integers up to 2^bits - 1.

    # With 8 bits, its odd integers would not fit into int8.
    bits: int = setting(4, _BITS, low=2, high=7)


@dataclass(frozen=True)
class StepWeights(_OfWeights):
    """Multiples of one step for the whole weight, saturating at the ends of the integers."""

    bits: int = setting(8, _BITS, low=2, high=8)
    step: float | None = setting(None, EVEN_STEP, **STEP)


@dataclass(frozen=True)
class CenterWeights(_OfWeights):
    """Each value becomes the nearest of a few centers that k-means found: an index and a codebook."""

    takes_bits_of_target = False

    centers: int = setting(
        16, "Number of centers; up to 16 take 4 bits per weight, more take 8.", low=2, high=256
    )
    granularity: str = setting(
        TENSOR,
        "One scale, or one set of centers, per output channel or per tensor.",
        choices=(TENSOR, CHANNEL),
    )

    @property
    def bits(self) -> int:
        """How many bits an index takes in the file."""
        return 4 if self.centers <= 16 else 8

    @property
    def is_even(self) -> bool:
        """Centers are not."""
        return False

    @property
    def float_reason(self) -> str:
        """What is looked up are floats."""
        return f"its weight is looked up in {self.centers} centers, and there is no integer kernel for that"

    def in_words(self, name: str) -> str:
        """Say what a weight is stored as."""
        return f"{name} ({self.centers}), {self.bits} bits"


class OfActivations:
    """What other rooms ask of a family's activations."""

    powers_of_two: ClassVar[bool] = False  # Scales are powers of two, which an export proves.

    def in_words(self, name: str) -> str:
        """Say what an activation is quantized to, where it is not the target's own."""
        return name

    def checked(self, where: str) -> Self:  # noqa: ARG002 - one interface
        """The family if its parameters go together."""
        return self


@dataclass(frozen=True, kw_only=True)
class ScaledActivations(OfActivations):
    """Integers spread evenly over the calibrated range, with the zero point that the target has."""

    bits: int | None = setting(None, "Activation bits, stored in 8-bit integers.", low=2, high=8)
    dtype: str | None = setting(
        None, "Integer or float type, if the target has it; if not set, the target's own.", choices=_DTYPES
    )
    symmetric: bool | None = setting(
        None,
        "Whether the zero point is 0, or the middle of an unsigned type; if not set, the target decides.",
    )

    def in_words(self, name: str) -> str:
        """Say what an activation is quantized to, where it is not the target's own."""
        kind = {None: None, True: "symmetric", False: "asymmetric"}[self.symmetric]
        bits = f"{self.bits} bits" if self.bits is not None else None
        return ", ".join(filter(None, (name, bits, self.dtype, kind)))

    def checked(self, where: str) -> Self:
        """The family; only integers of 8 bits can be kept within fewer."""
        if self.bits is not None and self.dtype in OTHER_THAN_BYTES:
            raise RecipeValueError(
                f"'{where}.bits' is {self.bits}, but '{where}.dtype' is '{self.dtype}': only integers of 8 "
                "bits are kept within fewer bits",
                hint=f"leave out one of the two, or write dtype = '{_DTYPES[0]}'",
            )
        return self


@dataclass(frozen=True)
class FixedPointActivations(OfActivations):
    """Integers times a power of two; the zero point is 0, or the middle where there are negative values."""

    powers_of_two = True

    integer: int | None = setting(
        None, "Bits before the binary point; if not set, as few as amax needs.", **_INTEGER
    )


@dataclass(frozen=True)
class StepActivations(OfActivations):
    """Multiples of a step, saturating; the zero point is 0, or the middle where there are negative values."""

    step: float | None = setting(None, EVEN_STEP, **STEP)


WeightFamily = ScaledWeights | FixedPointWeights | DorefaWeights | StepWeights | CenterWeights
ActivationFamily = ScaledActivations | FixedPointActivations | StepActivations


@dataclass(frozen=True)
class QuantizerFamily:
    """A family of quantizers.

    Attributes:
        name: as in a recipe.
        meaning: what it is, in one line.
        weights: its parameters for weights.
        activations: its parameters for activations, or why it takes none.
    """

    name: str
    meaning: str
    weights: type[WeightFamily]
    activations: type[ActivationFamily] | str

    @property
    def takes_activations(self) -> bool:
        """Whether it quantizes activations, too."""
        return not isinstance(self.activations, str)

    @property
    def weight_parameters(self) -> tuple[Setting, ...]:
        """What a recipe may say of it for weights."""
        return tuple(settings_of(self.weights))

    @property
    def activation_parameters(self) -> tuple[Setting, ...] | None:
        """Likewise for activations; None where it takes none."""
        return None if isinstance(self.activations, str) else tuple(settings_of(self.activations))


_FAMILIES = (
    QuantizerFamily("scaled", "integers spread evenly over a range", ScaledWeights, ScaledActivations),
    QuantizerFamily(
        "fixed_point",
        "integers times a power of two, for hardware that shifts",
        FixedPointWeights,
        FixedPointActivations,
    ),
    QuantizerFamily(
        "dorefa",
        "2^bits levels from -amax to amax, without 0",
        DorefaWeights,
        "0 is not one of its levels, so QuantizeLinear cannot compute them",
    ),
    QuantizerFamily("step", "multiples of a step", StepWeights, StepActivations),
    QuantizerFamily(
        "centers",
        "a few values, not evenly spaced, learned by k-means++",
        CenterWeights,
        "each value would have to be compared with every center while the model runs, and ONNX "
        "has no operator for that",
    ),
)

FAMILIES: Mapping[str, QuantizerFamily] = {family.name: family for family in _FAMILIES}
