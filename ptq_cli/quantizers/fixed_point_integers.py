"""The fixed-point quantizer, and what an ONNX file holds of its tensors."""

from dataclasses import dataclass
from typing import Any

import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.automatic_scale import AutoScale
from ptq_cli.quantizers.fixed_point_format import Alpha, FixedPointFormat, Rounding, steps_of
from ptq_cli.quantizers.grid import integer_dtype, require_float, require_no_nan
from ptq_cli.quantizers.straight_through import fresh

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
