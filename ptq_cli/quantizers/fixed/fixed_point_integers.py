"""What an ONNX file holds of a fixed-point tensor: integers, and scales that are powers of two."""

from dataclasses import dataclass

import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.numbers.formats import IntegerFormat
from ptq_cli.quantizers.fixed.auto_scale import AutoScale
from ptq_cli.quantizers.fixed.fixed_point_format import Alpha, FixedPointFormat, steps_of
from ptq_cli.quantizers.fixed.fixed_point_quantize import DETERMINISTIC, PLAIN_AUTO
from ptq_cli.quantizers.grid import integer_dtype, require_float, require_no_nan


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

    Shapes:
        scale: ``()``, or ``(n,)`` for the n indices along axis.
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
    """Return the integers and power-of-two scales of a tensor; the arguments are those of ``fixed_point``.

    ``integers * scale`` is ``fixed_point`` bit for bit, and so is what ONNX Runtime's DequantizeLinear
    makes of them.

    Which alpha has scales that are powers of two: None; "auto_po2" and "po2"; a number or tensor whose
    values are powers of two. "auto" has not, but where a channel's largest value happens to be one times
    the largest integer. It is the scales that decide, not alpha's name.

    Shapes:
        x: any; the integers have the same. The scales differ along one axis at most.

    Units:
        scale: real units per integer.

    Edge case:
        ±inf saturates with a given alpha.

    Raises:
        QuantizerValueError: bits is 1, x holds NaN, or a scale is not a power of two; or as ``fixed_point``.
        QuantizerShapeError: the scales differ along two axes or more; or as ``fixed_point``.
        QuantizerTypeError: as ``fixed_point``.

    Source:
        ONNX DequantizeLinear, opset 13.

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

    Shapes:
        scale: any.

    Raises:
        QuantizerValueError: one is not; the message has the first.

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
    """Return the axis along which scales differ, and them as ONNX takes them."""
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
