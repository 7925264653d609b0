"""The grid of a fixed-point quantizer: its format, and the integers that a tensor takes on it.

A fixed-point number is an integer times a power of two, so that hardware needs no multiplication to rescale
it. QKeras adds a factor ``alpha`` on top, given or found from the tensor itself (``fixed_point_scale``).
"""

from dataclasses import dataclass, field

import torch

from ptq_cli.core.errors import QuantizerTypeError, QuantizerValueError
from ptq_cli.core.formats import MAX_BITS
from ptq_cli.core.words import did_you_mean
from ptq_cli.quantizers.automatic_scale import AutoScale, automatic_step, half_away
from ptq_cli.quantizers.grid import require_broadcasts
from ptq_cli.quantizers.step import stochastic_round

AUTO, AUTO_PO2, PO2 = "auto", "auto_po2", "po2"
# The ways to find alpha. The last two are one: QKeras asks only whether the name holds "po2".
ALPHAS = (AUTO, AUTO_PO2, PO2)
# A factor of the result: none, a number, one that broadcasts, or the name of a way to find it.
Alpha = torch.Tensor | float | str | None

# With at most 16 bits, each step and its reciprocal are then normal float32 numbers, exact powers of two.
MIN_INTEGER, MAX_INTEGER = -110, 120


@dataclass(frozen=True)
class FixedPointFormat:
    """A fixed-point format as QKeras counts it: ``integer`` bits before the binary point, without the sign.

    Attributes:
        bits: 1 to 16, the sign included. One bit with a sign is binary: -1 and 1.
        integer: bits before the binary point; negative where the largest value is below 1.
        symmetric: leaves out the most negative integer.
        keep_negative: has a sign; otherwise the integers start at 0.

    Raises: QuantizerValueError: bits or integer out of range, or no whole number.

    Example:
        >>> format = FixedPointFormat(4, integer=1)
        >>> format.step, format.qmin, format.qmax
        (0.25, -8, 7)
        >>> FixedPointFormat(4, integer=-1, keep_negative=False).step
        0.03125
    """

    bits: int = 8
    integer: int = 0
    symmetric: bool = False
    keep_negative: bool = True

    def __post_init__(self) -> None:
        if not _is_whole(self.bits) or not 1 <= self.bits <= MAX_BITS:
            raise QuantizerValueError(
                f"{self.bits} bits is outside 1 to {MAX_BITS}", hint="the usual choice is 8 bits"
            )
        if not _is_whole(self.integer) or not MIN_INTEGER <= self.integer <= MAX_INTEGER:
            raise QuantizerValueError(
                f"integer must be {MIN_INTEGER} to {MAX_INTEGER}, got {self.integer}",
                hint="it counts the bits before the binary point; 0 is for values from -1 to 1",
            )

    @property
    def is_binary(self) -> bool:
        """Whether the only values are -1 and 1, whatever ``integer`` is."""
        return self.bits == 1 and self.keep_negative

    @property
    def step(self) -> float:
        """The distance of two neighboring values, ``2^(integer - bits + keep_negative)``."""
        return 1.0 if self.is_binary else 2.0 ** (self.integer - self.bits + self.keep_negative)

    @property
    def qmin(self) -> int:
        """Smallest integer, that of ``alpha`` None."""
        if self.is_binary:
            return -1
        return -(1 << (self.bits - 1)) + int(self.symmetric) if self.keep_negative else 0

    @property
    def qmax(self) -> int:
        """Largest integer, that of ``alpha`` None."""
        return 1 if self.is_binary else (1 << (self.bits - int(self.keep_negative))) - 1


@dataclass(frozen=True, eq=False)
class Rounding:
    """How a position between two steps becomes an integer.

    Attributes:
        stochastic: up with the probability of the fraction, so that the expectation is the position.
        training: a stochastic rounding takes place; otherwise it is half to even, which is deterministic.
        generator: where the random numbers come from.

    Example:
        >>> Rounding().draws, Rounding(stochastic=True, training=False).draws
        (False, False)
    """

    stochastic: bool = False
    training: bool = True
    generator: torch.Generator | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.draws and self.generator is None:
            raise QuantizerTypeError(
                "stochastic rounding needs a generator",
                hint="pass generator=torch.Generator(), seeded, or training=False",
            )

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return self.stochastic and self.training


@dataclass(frozen=True, eq=False)
class FixedPointSteps:
    """Where a tensor lies on its grid: ``integers * scale``.

    Shapes: integers: the tensor's, as float32. scale: broadcasts to the tensor; real units per integer.
        reported: what QKeras calls the scale: alpha, or what was found for it.
    """

    integers: torch.Tensor
    scale: torch.Tensor
    reported: torch.Tensor


def steps_of(
    wide: torch.Tensor, format: FixedPointFormat, alpha: Alpha, auto: AutoScale, rounding: Rounding
) -> FixedPointSteps:
    """Where a float32 tensor lies on the grid.

    Shapes: wide: any; an alpha tensor broadcasts to it.
    Edge case: ±inf saturates, except with an alpha found from the tensor: the result of its channel is NaN.
        NaN stays NaN. An alpha found from the tensor is symmetric, rounds halves away from zero, has no use
        for stochastic rounding, and keeps negative values even without ``keep_negative``.
    Source: QKeras 0.9.0, ``quantized_bits.__call__``.

    Example:
        >>> found = steps_of(torch.tensor([0.3, -2.0]), FixedPointFormat(3), 2.0, AutoScale(), Rounding())
        >>> found.integers.tolist(), float(found.scale), float(found.reported)
        ([1.0, -4.0], 0.5, 2.0)
    """
    if isinstance(alpha, str):
        if alpha not in ALPHAS:
            raise QuantizerValueError(
                f"unknown alpha '{alpha}'{did_you_mean(alpha, list(ALPHAS))}",
                hint=f"known: {', '.join(ALPHAS)}; or a number, a tensor, or None",
            )
        return _found(wide, format, alpha, auto)
    if auto.is_set:
        raise QuantizerTypeError(
            "auto_scale has options for an alpha that is found from the tensor, and this alpha is not",
            hint=f"alpha must be one of {', '.join(ALPHAS)} then",
        )
    reported = _given(wide, alpha)
    scale = reported * format.step
    if format.is_binary:
        signs = torch.where(wide < 0, -1.0, 1.0)
        return FixedPointSteps(torch.where(torch.isnan(wide), wide, signs), scale, reported)
    # Exact: the step is a power of two. The bounds are integers, so that clamping first changes nothing, and
    # lets an infinite x have a fraction.
    position = torch.clamp(wide / format.step, format.qmin, format.qmax)
    # Adding 0 makes 0 of -0, which no integer type holds. A tensor of zeros would be optimized away.
    return FixedPointSteps(_rounded(position, rounding) + 0.0, scale, reported)


def _rounded(position: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    if not rounding.draws:
        return torch.round(position)
    return stochastic_round(position, 1.0, generator=rounding.generator)


def _given(wide: torch.Tensor, alpha: torch.Tensor | float | None) -> torch.Tensor:
    """A given alpha as float32 on the tensor's device."""
    if isinstance(alpha, torch.Tensor):
        require_broadcasts("alpha", alpha, wide)
        return alpha.detach().to(wide.device, torch.float32)
    value = 1.0 if alpha is None else float(alpha)
    if not -float("inf") < value < float("inf"):
        raise QuantizerValueError(f"alpha must be finite, got {value}")
    return torch.full((), value, device=wide.device)


def _found(wide: torch.Tensor, format: FixedPointFormat, alpha: str, auto: AutoScale) -> FixedPointSteps:
    if format.bits < 2:
        raise QuantizerValueError(
            f"alpha {alpha!r} needs 2 bits or more, got {format.bits}",
            hint="pass alpha=None for a binary tensor",
        )
    if auto.frozen is not None:
        require_broadcasts("frozen", auto.frozen, wide)
    # In QKeras' units the whole range is 2^integer, of 2^(bits - keep_negative) steps.
    unit, steps = 2.0**format.integer, 2.0 ** (format.bits - format.keep_negative)
    qmax = (1 << (format.bits - 1)) - 1
    scaled = wide / unit
    step = automatic_step(scaled, qmax, power_of_two=alpha != AUTO, auto=auto, steps=steps)
    return FixedPointSteps(half_away(scaled, step, qmax), step * unit, step * steps)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
