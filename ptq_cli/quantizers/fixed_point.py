"""The fixed-point quantizer: its format, the integers on its grid, and what a file holds of them.

A fixed-point number is an integer times a power of two, so that hardware needs no multiplication to rescale
it. QKeras adds a factor ``alpha`` on top, given or found from the tensor itself (``fixed_point_scale``).
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.core.formats import MAX_BITS, IntegerFormat
from ptq_cli.core.words import did_you_mean
from ptq_cli.quantizers.automatic_scale import AutoScale, automatic_step, half_away
from ptq_cli.quantizers.grid import integer_dtype, require_broadcasts, require_float, require_no_nan
from ptq_cli.quantizers.step import stochastic_round
from ptq_cli.quantizers.straight_through import fresh

_AUTO, AUTO_PO2, PO2 = "auto", "auto_po2", "po2"
# The ways to find alpha. The last two are one: QKeras asks only whether the name holds "po2".
ALPHAS = (_AUTO, AUTO_PO2, PO2)
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
    step = automatic_step(scaled, qmax, power_of_two=alpha != _AUTO, auto=auto, steps=steps)
    return FixedPointSteps(half_away(scaled, step, qmax), step * unit, step * steps)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# The fixed-point quantizer: QKeras' ``quantized_bits``, for hardware that shifts instead of multiplying.
#
# Forward each value becomes an integer times a power of two (times ``alpha``). Backward the
# straight-through estimator holds, unclipped as in QKeras: the gradient passes everywhere.
DETERMINISTIC, PLAIN_AUTO = Rounding(), AutoScale()


class _FixedPoint(torch.autograd.Function):
    """``x + noise * (quantized - x)``, whose gradient is a constant times the upstream one."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        settings: tuple[FixedPointFormat, Alpha, AutoScale, Rounding],
        qnoise_factor: float,
        use_ste: bool,
    ) -> torch.Tensor:
        wide = x.to(torch.float32)
        ctx.slope = 1.0 if use_ste else 1.0 - qnoise_factor
        steps = steps_of(wide, *settings)
        quantized = steps.integers * steps.scale
        if qnoise_factor == 1.0:
            # Not x + (quantized - x) as in QKeras, which misses the grid by a rounding.
            return fresh(quantized.to(x.dtype))
        mixed = wide + qnoise_factor * (quantized - wide)
        return fresh(torch.where(torch.isinf(wide), wide, mixed).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        gradient = grad_outputs[0]
        return gradient if ctx.slope == 1.0 else gradient * ctx.slope, None, None, None


def fixed_point(
    x: torch.Tensor,
    bits: int = 8,
    integer: int = 0,
    symmetric: bool = False,
    keep_negative: bool = True,
    alpha: Alpha = None,
    *,
    auto: AutoScale = PLAIN_AUTO,
    stochastic: bool = False,
    training: bool = True,
    generator: torch.Generator | None = None,
    qnoise_factor: float = 1.0,
    use_ste: bool = True,
    check: bool = False,
) -> torch.Tensor:
    """Quantize to fixed point and back: ``alpha * step * clip(round_half_even(x / step), qmin, qmax)``.

    ``step = 2^(integer - bits + keep_negative)``; the integers are ``-2^(bits-1) + symmetric`` to
    ``2^(bits-1) - 1``, or 0 to ``2^bits - 1`` without ``keep_negative``. The gradient of x is the upstream
    gradient everywhere, also where x was clipped; ``alpha`` gets none.

    Args:
        x: the tensor; float16 and bfloat16 are computed in float32 and cast back.
        bits: 1 to 16, the sign included; 1 with a sign gives -1 and 1.
        integer: bits before the binary point, without the sign; may be negative.
        symmetric: leave out the most negative integer.
        keep_negative: keep negative values; otherwise they become 0.
        alpha: a factor of the result (x is not divided by it): None, a number, or a tensor that broadcasts
            to x. "auto" finds one for each channel, so that its largest value is the largest integer;
            "auto_po2", for which "po2" is another name, the power of two that fits best. Both are symmetric,
            round halves away from zero, and keep negative values.
        auto: the options of an alpha that is found.
        stochastic: while ``training``, round up with the probability of the fraction, so that the expectation
            is the unrounded value; an alpha that is found has no use for it.
        training: false rounds half to even, whatever ``stochastic`` says: the evaluation is deterministic.
        generator: where the random numbers come from; there is no global seed.
        qnoise_factor: how far to go from x to the quantized value, 0 to 1, for training that sets in gently.
        use_ste: the gradient is 1; otherwise ``1 - qnoise_factor``.
        check: refuse NaN; has no effect in a compiled graph, which cannot raise.

    Shapes: x: any; the result has the same, and its dtype. alpha: broadcasts to x.
    Edge case: ±inf saturates, but an alpha that is found makes NaN of that channel. NaN stays NaN. With
        ``qnoise_factor < 1`` ±inf stays.

    Raises:
        QuantizerValueError: bits, integer, alpha or qnoise_factor out of range, alpha is a text that names no
            way to find it, or ``check`` and x holds NaN.
        QuantizerShapeError: alpha does not broadcast to x.
        QuantizerTypeError: x is not a float tensor, a stochastic rounding has no generator, or ``auto`` has
            options and alpha is not found.

    Source: QKeras 0.9.0, ``quantized_bits``; Coelho et al. 2021, "Automatic heterogeneous quantization of
        deep neural networks for low-latency inference on the edge for particle detectors".

    Example:
        >>> x = torch.tensor([0.3, -2.0, 0.125], requires_grad=True)
        >>> y = fixed_point(x, bits=3)
        >>> y.tolist()
        [0.25, -1.0, 0.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [1.0, 1.0, 1.0]
    """
    if not 0 <= qnoise_factor <= 1:
        raise QuantizerValueError(f"qnoise_factor must be 0 to 1, got {qnoise_factor}")
    require_float(x)
    if check and not torch.compiler.is_compiling():
        require_no_nan(x)
    rounding = Rounding(stochastic, training, generator)
    settings = (FixedPointFormat(bits, integer, symmetric, keep_negative), alpha, auto, rounding)
    result: torch.Tensor = _FixedPoint.apply(x, settings, qnoise_factor, use_ste)  # type: ignore[no-untyped-call]
    return result


def fixed_point_scale(
    x: torch.Tensor,
    bits: int = 8,
    integer: int = 0,
    symmetric: bool = False,
    keep_negative: bool = True,
    alpha: Alpha = None,
    *,
    auto: AutoScale = PLAIN_AUTO,
) -> torch.Tensor:
    """The scale that QKeras reports: alpha, or what is found for it.

    An integer is worth ``scale * 2^(integer - bits + keep_negative)``.

    Shapes: x: any. The result broadcasts to it: ``()`` for None or a number, alpha's shape for a tensor, and
        size 1 on every axis but that of the channels where it is found.
    Units: None: it is a factor.
    Edge case: Without ``keep_negative`` a found scale is twice as large, because QKeras counts as many steps
        more, although the integers are the same. A channel of zeros has 0 with "auto".
    Source: QKeras 0.9.0, ``quantized_bits.scale``.

    Example:
        >>> fixed_point_scale(torch.tensor([[0.9, 0.1], [-0.6, 0.2]]), bits=4, alpha="auto_po2").tolist()
        [[1.0, 0.25]]
    """
    format = FixedPointFormat(bits, integer, symmetric, keep_negative)
    require_float(x)
    return steps_of(x.detach().to(torch.float32), format, alpha, auto, DETERMINISTIC).reported


@dataclass(frozen=True, eq=False, kw_only=True)
class FixedPointIntegers:
    """A fixed-point tensor as DequantizeLinear takes it; the zero point is 0.

    Attributes:
        integers: (u)int8 up to 8 bits, (u)int16 above.
        scale: DequantizeLinear's, each a power of two; real units per integer.
        axis: the axis that the scales count along, or None for one scale.
        format: the integers' format.
        step: QuantizeLinear's scale for which it computes these integers, a power of two; None where no
            QuantizeLinear does, because halves go away from zero (alpha found from the tensor).

    Shapes: scale: ``()``, or ``(n,)`` for the n indices along axis.
    """

    integers: torch.Tensor
    scale: torch.Tensor
    axis: int | None
    format: IntegerFormat
    step: float | None


def quantize_fixed_point(
    x: torch.Tensor,
    bits: int = 8,
    integer: int = 0,
    symmetric: bool = False,
    keep_negative: bool = True,
    alpha: Alpha = None,
    *,
    auto: AutoScale = PLAIN_AUTO,
) -> FixedPointIntegers:
    """The integers and power-of-two scales of a tensor; the arguments are those of ``fixed_point``.

    ``integers * scale`` is ``fixed_point`` bit for bit, and so is what ONNX Runtime's DequantizeLinear
    makes of them.

    Which alpha has scales that are powers of two: None; "auto_po2" and "po2"; a number or tensor whose
    values are powers of two. "auto" has not, but where a channel's largest value happens to be one times
    the largest integer. It is the scales that decide, not alpha's name.

    Shapes: x: any; the integers have the same. The scales differ along one axis at most.
    Units: scale: real units per integer.
    Edge case: ±inf saturates with a given alpha.

    Raises: QuantizerValueError: bits is 1, x holds NaN, or a scale is not a power of two; or as
        ``fixed_point``. QuantizerShapeError: the scales differ along two axes or more; or as ``fixed_point``.
        QuantizerTypeError: as ``fixed_point``.

    Source: ONNX DequantizeLinear, opset 13.

    Example:
        >>> found = quantize_fixed_point(torch.tensor([0.3, -2.0, 0.125]), bits=3)
        >>> found.integers.tolist(), float(found.scale), found.step, found.format.name
        ([1, -4, 0], 0.25, 0.25, 'int3')
    """
    found = isinstance(alpha, str)
    layout = FixedPointFormat(bits, integer, symmetric, keep_negative)
    signed = found or keep_negative
    format = IntegerFormat(bits, signed=signed, narrow_range=signed and (found or symmetric))
    require_float(x)
    require_no_nan(x)
    wide = x.detach().to(torch.float32)
    steps = steps_of(wide, layout, alpha, auto, DETERMINISTIC)
    require_power_of_two(steps.scale)
    axis, scale = _along_one_axis(steps.scale, wide)
    return FixedPointIntegers(
        integers=steps.integers.to(integer_dtype(format)),
        scale=scale,
        axis=axis,
        format=format,
        step=None if found else layout.step,
    )


def require_power_of_two(scale: torch.Tensor) -> None:
    """Prove that every scale is a positive power of two, so that hardware can shift instead of multiplying.

    The proof reads the float's own bits: the sign is positive, the mantissa is 0, and the exponent is one of
    a normal number.

    Shapes: scale: any.

    Raises: QuantizerValueError: one is not; the message has the first.

    Example:
        >>> require_power_of_two(torch.tensor([0.25, 2.0]))
        >>> require_power_of_two(torch.tensor([0.25, 0.3]))
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.QuantizerValueError: PTQ-QUANT-001: scale 0.3 is not a power of two
        hint: alpha None and "auto_po2" have powers of two, and so has a number that is one
    """
    flat = scale.detach().to(torch.float32).reshape(-1)
    # Bit 31 is the sign: a negative number has a negative exponent here.
    bits = flat.view(torch.int32)
    exponent = bits >> 23
    proven = ((bits & 0x7FFFFF) == 0) & (exponent >= 1) & (exponent <= 254)
    if not bool(proven.all()):
        raise QuantizerValueError(
            f"scale {float(flat[~proven][0]):g} is not a power of two",
            hint='alpha None and "auto_po2" have powers of two, and so has a number that is one',
        )


def _along_one_axis(scale: torch.Tensor, x: torch.Tensor) -> tuple[int | None, torch.Tensor]:
    """The axis along which scales differ, and them as ONNX takes them."""
    lead = x.ndim - scale.ndim
    axes = [index + lead for index, size in enumerate(scale.shape) if size > 1]
    if len(axes) > 1:
        raise QuantizerShapeError(
            f"the scales differ along {len(axes)} axes, {tuple(scale.shape)}; ONNX has one axis",
            hint="pass an alpha with one axis of a size above 1",
        )
    if not axes:
        # A scale without elements belongs to a tensor without.
        return None, scale.reshape(()) if scale.numel() else torch.ones((), device=scale.device)
    return axes[0], scale.reshape(-1)
