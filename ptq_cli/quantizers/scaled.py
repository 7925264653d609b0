"""The scaled quantizer: integers spread evenly over ``[-amax, amax]``, or over a scale and zero point.

Forward it computes what ONNX Runtime computes, bit for bit. Backward the clipped straight-through
estimator holds: the gradient passes where the input lies inside the range, and is 0 where it was clipped.
"""

from typing import Any

import numpy as np
import torch

from ptq_cli.core.arithmetic import ZERO_AMAX, scale_from_amax
from ptq_cli.core.errors import RecipeValueError, UsageError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.grid import (
    Grid,
    Real,
    broadcast_against,
    granularity_of,
    integer_dtype,
    read_parameter,
    require_float,
    require_no_nan,
    to_integers,
    to_values,
)
from ptq_cli.quantizers.straight_through import pass_where


class _ScaledQuantizer(torch.autograd.Function):
    """Fake quantization whose gradient passes where ``low <= x <= high``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, grid: Grid, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        # float16 and bfloat16 cannot hold the steps between, so the arithmetic is float32's throughout.
        wide = require_float(x)
        # The mask is a quarter of the input's size, which is all that backward needs of it.
        ctx.save_for_backward((wide >= low) & (wide <= high))
        return to_values(to_integers(wide, grid), grid).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (passes,) = ctx.saved_tensors
        return pass_where(passes, grad_outputs[0]), None, None, None


def fake_quantize(
    x: torch.Tensor,
    amax: Real,
    *,
    bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    axis: int | None = None,
) -> torch.Tensor:
    """Quantize and dequantize symmetrically: ``clip(round_half_even(x / scale), qmin, qmax) * scale``.

    ``scale = amax / qmax``, as ``scale_from_amax`` has it. The gradient of ``x`` is the upstream gradient
    where ``|x| <= amax``, edge included, and 0 elsewhere; ``amax`` gets none.

    Args:
        x: the tensor; float16 and bfloat16 are computed in float32 and cast back.
        amax: the largest magnitude that is represented.
        bits: 2 to 16.
        unsigned: the integers start at 0, and ``narrow_range`` has no meaning.
        narrow_range: leave out the most negative integer, so that the range is symmetric about 0.
        axis: one amax for each index along it; None for one for the tensor.

    Shapes:
        x: any; the result has the same, and its dtype.
        amax: ``()``, or ``(x.shape[axis],)``.

    Edge case:
        An amax not above 2^-24 gives 0 for every x, where the exported scale of 1 gives 0 only for
        ``|x| <= 0.5``. ±inf saturates. NaN stays NaN.

    Raises:
        RecipeValueError: amax is negative or not finite, or bits or axis out of range.
        UsageError: amax has the wrong shape, x is no float tensor, or unsigned and x holds negative values.

    Source:
        NVIDIA pytorch-quantization, ``fake_tensor_quant``, with ONNX's division by the scale in place of
        the product with its reciprocal; ONNX QuantizeLinear and DequantizeLinear, opset 13.

    Example:
        >>> x = torch.tensor([-2.0, -1.0, 0.3, 1.0], requires_grad=True)
        >>> y = fake_quantize(x, 1.0, bits=3)
        >>> [round(value, 4) for value in y.tolist()]
        [-1.0, -1.0, 0.3333, 1.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [0.0, 1.0, 1.0, 1.0]
    """
    grid, bound = _symmetric_grid(x, amax, _format(bits, unsigned, narrow_range), axis)
    result: torch.Tensor = _ScaledQuantizer.apply(x, grid, -bound, bound)  # type: ignore[no-untyped-call]
    return result


def quantize(
    x: torch.Tensor,
    amax: Real,
    *,
    bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    axis: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the integers and the scale that multiplies them; the arguments are those of ``fake_quantize``.

    The result carries no gradient: integers have none.

    Shapes:
        x: any; the integers have the same, as (u)int8 up to 8 bits and (u)int16 above.
        amax: ``()``, or ``(x.shape[axis],)``; the scale has the same, in float32.

    Units:
        scale: real units per integer step, ``amax / qmax``.

    Edge case:
        An amax not above 2^-24 gives integers 0 and scale 1. ±inf saturates.

    Raises:
        RecipeValueError: x holds NaN; or as ``fake_quantize``.
        UsageError: as ``fake_quantize``.

    Source:
        ONNX QuantizeLinear, opset 13.

    Example:
        >>> integers, scale = quantize(torch.tensor([-3.0, 0.3, 1.0]), 1.27)
        >>> integers.tolist(), integers.dtype, round(float(scale), 6)
        ([-127, 30, 100], torch.int8, 0.01)
    """
    format = _format(bits, unsigned, narrow_range)
    grid, _ = _symmetric_grid(x, amax, format, axis)
    wide = require_float(x)
    require_no_nan(wide)
    scale = grid.scale.reshape(granularity_of(axis).scale_shape(tuple(x.shape)))
    return to_integers(wide, grid).to(integer_dtype(format)), scale


def fake_quantize_affine(
    x: torch.Tensor,
    scale: Real,
    zero_point: Real,
    format: IntegerFormat,
    axis: int | None = None,
) -> torch.Tensor:
    """Quantize and dequantize with a zero point.

    ``(saturate(round_half_even(x / scale) + zero_point) - zero_point) * scale``.

    The gradient of ``x`` is the upstream gradient where x lies in the representable range
    ``[(qmin - zero_point) * scale, (qmax - zero_point) * scale]``, edges included, and 0 elsewhere;
    scale and zero point get none.

    Shapes:
        x: any; the result has the same, and its dtype.
        scale, zero_point: ``()``, or ``(x.shape[axis],)``.

    Units:
        scale: real units per integer step.

    Edge case:
        ±inf saturates. NaN stays NaN.

    Raises:
        RecipeValueError: a scale is not a positive float32, a zero point no integer of the format, or the
            axis out of range.
        UsageError: a parameter has the wrong shape, or x is no float tensor.

    Source:
        ONNX QuantizeLinear and DequantizeLinear, opset 13; Krishnamoorthi 2018, "Quantizing deep
        convolutional networks for efficient inference", sections 2.1 and 2.4.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> x = torch.tensor([-6.0, -1.1, 0.2, 122.5, 123.0], requires_grad=True)
        >>> y = fake_quantize_affine(x, 0.5, 10, UINT8)
        >>> y.tolist()
        [-5.0, -1.0, 0.0, 122.5, 122.5]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [0.0, 1.0, 1.0, 1.0, 0.0]
    """
    grid = _affine_grid(x, scale, zero_point, format, axis)
    low, high = to_values(grid.qmin, grid), to_values(grid.qmax, grid)
    result: torch.Tensor = _ScaledQuantizer.apply(x, grid, low, high)  # type: ignore[no-untyped-call]
    return result


def _format(bits: int, unsigned: bool, narrow_range: bool) -> IntegerFormat:
    return IntegerFormat(bits, signed=not unsigned, narrow_range=narrow_range and not unsigned)


def _symmetric_grid(
    x: torch.Tensor, amax: Real, format: IntegerFormat, axis: int | None
) -> tuple[Grid, torch.Tensor]:
    """Return the grid and amax, both laid out against x."""
    wide = require_float(x)
    if not format.signed and bool((wide < 0).any()):
        raise UsageError(
            "an unsigned quantizer got negative values", hint="use a signed format, or clamp the tensor at 0"
        )
    granularity = granularity_of(axis)
    values = read_parameter("amax", amax, wide, granularity)
    scale = scale_from_amax(values, format)
    # An all-zero channel saturates to [0, 0]: its scale of 1 says nothing about its range.
    alive = values > ZERO_AMAX
    grid = Grid(
        scale=broadcast_against(wide, scale, granularity),
        zero_point=torch.zeros((), device=wide.device),
        qmin=broadcast_against(wide, np.where(alive, format.qmin, 0), granularity),
        qmax=broadcast_against(wide, np.where(alive, format.qmax, 0), granularity),
    )
    return grid, broadcast_against(wide, values, granularity)


def _affine_grid(
    x: torch.Tensor, scale: Real, zero_point: Real, format: IntegerFormat, axis: int | None
) -> Grid:
    wide = require_float(x)
    granularity = granularity_of(axis)
    scales = read_parameter("scale", scale, wide, granularity).astype(np.float32)
    zero_points = read_parameter("zero_point", zero_point, wide, granularity)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise RecipeValueError(f"a scale must be positive and finite, got {np.ravel(scales)[:4].tolist()}")
    allowed = (zero_points >= format.qmin) & (zero_points <= format.qmax) & (zero_points % 1 == 0)
    if not allowed.all():
        wrong = float(np.ravel(zero_points)[np.ravel(~allowed)][0])
        raise RecipeValueError(
            f"zero point {wrong:g} is no integer of {format.name}, which has {format.qmin} to {format.qmax}"
        )
    return Grid(
        scale=broadcast_against(wide, scales, granularity),
        zero_point=broadcast_against(wide, zero_points, granularity),
        qmin=torch.tensor(float(format.qmin), device=wide.device),
        qmax=torch.tensor(float(format.qmax), device=wide.device),
    )
