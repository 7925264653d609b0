"""The families of quantizers by name, with their parameters: what one may ask for, without PyTorch.

What they compute is in ``ptq_cli.quantizers``; a family here says which settings it takes and in what range.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.core.known_names import did_you_mean, require_known
from ptq_cli.recipe import quantizer_settings as quantizers

Value = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a family.

    Attributes:
        name: as in a recipe.
        default: what holds without it; None where it is then found from the values.
        meaning: one line.
        low: the smallest value; None for -2^100.
        high: the largest; None for 2^100.
        positive: it is 2^-100 to 2^100, so that its reciprocal is a float32 too.
        words: the texts that it may be, none for a number.
    """

    name: str
    default: Value | None
    meaning: str
    low: int | None = None
    high: int | None = None
    positive: bool = False
    words: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """What it may be, in words.

        Example:
            >>> (
            ...     Parameter(name="bits", default=8, meaning="", low=2, high=16).wanted,
            ...     Parameter(name="alpha", default=1.0, meaning="").wanted,
            ... )
            ('2 to 16', '-2^100 to 2^100')
        """
        if isinstance(self.default, bool):
            return "true or false"
        if self.words:
            return " or ".join(self.words)
        if self.low is None:
            return "2^-100 to 2^100" if self.positive else "-2^100 to 2^100"
        return f"{self.low} to {self.high}"

    def allows(self, value: Value) -> bool:
        """Tell whether it may be a value of the default's type.

        Example:
            >>> Parameter(name="step", default=0.25, meaning="", positive=True).allows(float("nan"))
            False
        """
        if isinstance(value, str):
            return value in self.words
        largest = 2.0**100
        low = (1 / largest if self.positive else -largest) if self.low is None else self.low
        # Written so that NaN is refused too.
        return low <= value <= (largest if self.high is None else self.high)


@dataclass(frozen=True)
class RecipeParameter:
    """A parameter that a recipe may give a family.

    Attributes:
        name: as in a recipe.
        default: what holds without it; None where it is then found from the values.
        wanted: what it may be, in words.
    """

    name: str
    default: Value | None
    wanted: str


@dataclass(frozen=True, kw_only=True)
class QuantizerFamily:
    """A family of quantizers.

    Attributes:
        name: as in a recipe.
        meaning: what it is, in one line.
        formula: what it computes.
        gradient: what stands for its derivative with respect to x.
        source: the paper or project that it is from.
        drawn: those of a drawing. A model has some of them from its own values, such as amax.
    """

    name: str
    meaning: str
    formula: str
    gradient: str
    source: str
    drawn: tuple[Parameter, ...]

    @property
    def weights(self) -> tuple[RecipeParameter, ...]:
        """What a recipe may say of it for weights."""
        return _recipe_parameters(quantizers.FAMILY_SETTINGS[self.name].weights)

    @property
    def activations(self) -> tuple[RecipeParameter, ...] | None:
        """Likewise for activations; None where it takes none."""
        kind = quantizers.FAMILY_SETTINGS[self.name].activations
        return None if kind is None else _recipe_parameters(kind)


def _recipe_parameters(
    kind: type[quantizers.WeightFamily | quantizers.ActivationFamily],
) -> tuple[RecipeParameter, ...]:
    return tuple(
        RecipeParameter(item.name, getattr(kind(), item.name), item.metadata["wanted"])
        for item in fields(kind)
    )


_DRAWN_BITS = Parameter(name="bits", default=4, meaning="number of bits", low=2, high=16)
_AMAX = Parameter(
    name="amax", default=1.0, meaning="largest magnitude that can be represented", positive=True
)
_INTEGER = Parameter(
    name="integer", default=None, meaning="bits before the binary point, without the sign", low=-110, high=120
)
_STEP = Parameter(name="step", default=None, meaning="distance between two levels", positive=True)

_FAMILIES = (
    QuantizerFamily(
        name="scaled",
        meaning="integers spread evenly over a range",
        formula="clip(round(x / scale), qmin, qmax) * scale, scale = amax / qmax",
        gradient="1 where |x| <= amax, 0 elsewhere",
        source="NVIDIA pytorch-quantization; ONNX QuantizeLinear",
        drawn=(
            _DRAWN_BITS,
            _AMAX,
            Parameter(name="unsigned", default=False, meaning="represent no negative values"),
            Parameter(name="narrow_range", default=True, meaning="leave out the most negative integer"),
        ),
    ),
    QuantizerFamily(
        name="fixed_point",
        meaning="integers times a power of two, for hardware that shifts",
        formula="alpha * step * clip(round(x / step), qmin, qmax), step = 2^(integer - bits + keep_negative)",
        gradient="1 everywhere, also where x is clipped",
        source="QKeras, quantized_bits",
        drawn=(
            replace(_DRAWN_BITS, low=1),
            replace(_INTEGER, default=0),
            Parameter(name="symmetric", default=False, meaning="leave out the most negative integer"),
            Parameter(name="keep_negative", default=True, meaning="represent negative values"),
            Parameter(name="alpha", default=1.0, meaning="factor that the result is multiplied by"),
        ),
    ),
    QuantizerFamily(
        name="dorefa",
        meaning="2^bits levels from -amax to amax, without 0",
        formula="2 amax round(n u) / n - amax, n = 2^bits - 1, u = (clip(x, -amax, amax) + amax) / (2 amax)",
        gradient="1 where |x| <= amax, 0 elsewhere",
        source="Zhou et al. 2016, DoReFa-Net; SpikingJelly",
        drawn=(replace(_DRAWN_BITS, low=1), _AMAX),
    ),
    QuantizerFamily(
        name="step",
        meaning="multiples of a step",
        formula="round(x / step) * step",
        gradient="1 everywhere",
        source="SpikingJelly, step_quantize",
        drawn=(replace(_STEP, default=0.25),),
    ),
    QuantizerFamily(
        name="centers",
        meaning="a few values, not evenly spaced, learned by k-means++",
        formula="the nearest center",
        gradient="the gradient of sum(p * centers), p = softmax(-|x - centers| / temperature)",
        source="Agustsson et al. 2017, soft-to-hard vector quantization",
        drawn=(
            Parameter(
                name="centers",
                default=16,
                meaning="number of centers, learned from normally distributed values",
                low=2,
                high=256,
            ),
            Parameter(
                name="temperature",
                default=0.1,
                meaning="how far around a center its gradient reaches",
                positive=True,
            ),
            Parameter(name="seed", default=0, meaning="seed of the random numbers", low=0, high=2**32 - 1),
        ),
    ),
)

FAMILIES: Mapping[str, QuantizerFamily] = {family.name: family for family in _FAMILIES}


def find_family(name: str) -> QuantizerFamily:
    """Return a family by its name.

    Raises:
        UnknownNameError: there is none; the message has the nearest name.

    Example:
        >>> find_family("dorefa").weights[0].default
        4
    """
    require_known("quantizer", name, FAMILIES)
    return FAMILIES[name]


def drawing_settings(family: QuantizerFamily, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a drawing of a family: those given, otherwise the defaults.

    Raises:
        RecipeKeyError: the family has no such parameter.
        RecipeValueError: a value is out of range.

    Example:
        >>> drawing_settings(find_family("dorefa"), {"bits": 3})
        {'bits': 3, 'amax': 1.0}
    """
    known = {parameter.name: parameter for parameter in family.drawn}
    for name, value in given.items():
        if name not in known:
            raise RecipeKeyError(
                f"'{name}' is not a parameter of quantizer '{family.name}'{did_you_mean(name, list(known))}",
                hint=f"'{family.name}' is drawn with: {', '.join(known)}",
            )
        if not known[name].allows(value):
            raise RecipeValueError(
                f"{name} is {value}, quantizer '{family.name}' expects {known[name].wanted}",
                hint="run `ptq quantizers show --help` to see what can be drawn",
            )
    defaults = {item.name: item.default for item in family.drawn if item.default is not None}
    return {**defaults, **given}
