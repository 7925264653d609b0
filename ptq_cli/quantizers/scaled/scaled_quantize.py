"""The scaled quantizer: integers over ``[-amax, amax]``, with a zero point, or with an amax that learns.

Forward it computes what ONNX Runtime computes for QuantizeLinear and DequantizeLinear, bit for bit; it is the
twin of ``ptq_cli.core.arithmetic``, which defines the arithmetic. Backward the clipped
straight-through estimator holds: the gradient passes where the input lies inside the range, and is 0 where it
was clipped.

This is what a model is quantized and exported with. NVIDIA's arithmetic, which multiplies with the reciprocal
of the scale and so misses some ties, is in ``tensor_quant``.

A format of b bits is stored in the next larger integer type of ONNX: (u)int4, (u)int8 or (u)int16. A constant
is stored as its integers, which lie in the format's range. In front of the QuantizeLinear of an activation
whose format does not fill the type stands a Clip to ``[qmin * scale, qmax * scale]``, or Max and Min where
the scale has an axis, which gives the same bits. With (u)int4 it always stands there: beyond 2^31 steps ONNX
Runtime 1.31 wraps to the other end.

Forward it computes what ONNX Runtime computes for QuantizeLinear and DequantizeLinear, bit for bit.
NVIDIA's form, whose zero point need not be an integer of the format, is in ``tensor_quant``.
"""

from functools import partial
from typing import Any

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.grid import (
    FAINT_AMAX,
    Real,
    granularity_of,
    integer_dtype,
    integer_format,
    read_parameter,
    require_amax,
    require_float,
    require_no_nan,
    require_not_negative,
    require_scale,
)
from ptq_cli.quantizers.straight_through import clipped, fresh, map_blocks, pass_where


def fake_quantize(
    x: torch.Tensor,
    amax: Real,
    *,
    bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    axis: int | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Quantize and dequantize symmetrically: ``clip(round_half_even(x / scale), qmin, qmax) * scale``.

    ``scale = amax / qmax``, as in ``core.numbers.arithmetic.scale_from_amax``. The gradient of ``x`` is the
    upstream gradient where ``|x| <= amax``, edge included, and 0 elsewhere; ``amax`` gets none.

    Args:
        x: the tensor; computed in float32 for every float dtype, and cast back.
        amax: the largest magnitude that is represented.
        bits: 2 to 16.
        unsigned: the integers start at 0, and ``narrow_range`` has no meaning.
        narrow_range: leave out the most negative integer, so that the range is symmetric about 0.
        axis: one amax for each index along it; None for one for the tensor.
        check: refuse NaN, which otherwise stays NaN.

    Shapes: x: any; the result has the same, and its dtype. amax: ``()``, or ``(x.shape[axis],)``.
    Edge case: An amax not above 2^-24 gives 0 for every x, where the exported scale of 1 gives 0 only for
        ``|x| <= 0.5``. ±inf saturates. What depends on values is checked in eager mode only, not while
        compiling.

    Raises: QuantizerValueError: amax is negative or not finite, bits out of range, or x is checked and holds
        NaN. QuantizerTypeError: x is not a float tensor, or unsigned and x holds negative values.
        QuantizerShapeError: amax has the wrong shape. AxisError: x has no such axis.

    Source: NVIDIA pytorch-quantization, ``fake_tensor_quant``, with ONNX's division by the scale in place of
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
    format = integer_format(bits, unsigned, narrow_range)
    bound = read_parameter("amax", amax, x, granularity_of(axis))
    return fake_quantize_to(x, bound, format, check=check)


def fake_quantize_to(
    x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat, *, check: bool = False
) -> torch.Tensor:
    """Do as ``fake_quantize``, with an amax that broadcasts to ``x`` in any way.

    Shapes: x: any; the result has the same. amax: broadcasts to it.

    Example:
        >>> fake_quantize_to(torch.ones(2, 2), torch.tensor([[0.0, 1.0]]), IntegerFormat(8, True)).tolist()
        [[0.0, 1.0], [0.0, 1.0]]
    """
    _check(x, amax, format, check)
    scale, alive = symmetric_scale(amax, format, x.device)
    bound = amax.to(x.device, torch.float32)
    chain = partial(_values, low=format.qmin, high=format.qmax)
    return clipped(chain, x, None, bound, scale, scale * alive)


def values_of(x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> torch.Tensor:
    """The values of ``fake_quantize_to``, without its checks and its gradient.

    Shapes: x: any; the result has the same. amax: broadcasts to it.

    Example:
        >>> values_of(torch.tensor([0.4, 9.0]), torch.tensor(1.0), IntegerFormat(2, True)).tolist()
        [0.0, 1.0]
    """
    scale, alive = symmetric_scale(amax, format, x.device)
    chain = partial(_values, low=format.qmin, high=format.qmax)
    return map_blocks(chain, x, scale, scale * alive)


def quantize(
    x: torch.Tensor,
    amax: Real,
    *,
    bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    axis: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The integers and the scale that multiplies them; the arguments are those of ``fake_quantize``.

    The result carries no gradient: integers have none.

    Shapes: x: any; the integers have the same, as (u)int8 up to 8 bits and (u)int16 above. amax: ``()``, or
        ``(x.shape[axis],)``; the scale has the same, in float32.
    Units: scale: real units per integer step, ``amax / qmax``.
    Edge case: An amax not above 2^-24 gives integers 0 and scale 1. ±inf saturates.

    Raises: QuantizerValueError: x holds NaN; or as ``fake_quantize``, like the others.

    Source: ONNX QuantizeLinear, opset 13.

    Example:
        >>> integers, scale = quantize(torch.tensor([-3.0, 0.3, 1.0]), 1.27)
        >>> integers.tolist(), integers.dtype, round(float(scale), 6)
        ([-127, 30, 100], torch.int8, 0.01)
    """
    format = integer_format(bits, unsigned, narrow_range)
    granularity = granularity_of(axis)
    bound = read_parameter("amax", amax, x, granularity)
    integers, scale = quantize_to(x, bound, format)
    return integers, scale.reshape(granularity.scale_shape(tuple(x.shape)))


def quantize_to(
    x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do as ``quantize``, with an amax that broadcasts to ``x`` in any way.

    Shapes: x: any; the integers have the same. amax: broadcasts to it; the scale has the same.

    Example:
        >>> quantize_to(torch.ones(2), torch.ones(1), IntegerFormat(4, signed=False))[0].tolist()
        [15, 15]
    """
    _check(x, amax, format, check=True)
    scale, alive = symmetric_scale(amax, format, x.device)
    chain = partial(_integers, low=format.qmin, high=format.qmax)
    return map_blocks(chain, x.detach(), scale, alive, dtype=integer_dtype(format)), scale


def symmetric_scale(
    amax: torch.Tensor, format: IntegerFormat, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``amax / qmax``, and 0 where the channel holds zeros only, otherwise 1, both as float32.

    Shapes: amax: any; both have the same.
    Edge case: An amax not above 2^-24 gives scale 1.

    Example:
        >>> scale, alive = symmetric_scale(
        ...     torch.tensor([1.27, 0.0]), IntegerFormat(8, True), torch.device("cpu")
        ... )
        >>> scale.tolist(), alive.tolist()
        ([0.009999999776482582, 1.0], [1.0, 0.0])
    """
    dead = amax <= FAINT_AMAX
    # By a tensor where amax is, because a GPU turns the division by a number into a product. Where amax holds
    # a float32, one rounded division of it is the division in float64, rounded once more.
    scale = amax / torch.full((), float(format.qmax), dtype=amax.dtype, device=amax.device)
    scale = scale.masked_fill(dead, 1.0).to(device, torch.float32)
    return scale, (~dead).to(device, torch.float32)


def _check(x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat, check: bool) -> None:
    require_float(x)
    if not format.signed:
        require_not_negative(x)
    require_amax(amax)
    if check:
        require_no_nan(x)


def rounded_steps(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return ``round_half_even(x / scale)`` in a new float32 tensor.

    Shapes: x: any; the result has the same. scale: broadcasts to it.
    Edge case: NaN and ±inf stay.
    Source: ONNX QuantizeLinear, opset 13.

    Example:
        >>> rounded_steps(torch.tensor([0.25, 0.75]), torch.tensor(0.5)).tolist()
        [0.0, 2.0]
    """
    # A true division: a product with the reciprocal misses many ties.
    return (x.to(torch.float32) / scale).round_()


def _integers(x: torch.Tensor, scale: torch.Tensor, alive: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return rounded_steps(x, scale).clamp_(low, high).mul_(alive)


def _values(
    x: torch.Tensor, scale: torch.Tensor, value_scale: torch.Tensor, low: int, high: int
) -> torch.Tensor:
    # The integers of a runtime have no -0.0; adding 0.0 makes it 0.0 here too.
    return rounded_steps(x, scale).clamp_(low, high).mul_(value_scale).add_(0.0)


# The quantizer with a zero point: any integer of the format may stand for 0.
#
# Forward it computes what ONNX Runtime computes for QuantizeLinear and DequantizeLinear, bit for bit.
# NVIDIA's form, whose zero point need not be an integer of the format, is in ``tensor_quant``.
def fake_quantize_affine(
    x: torch.Tensor,
    scale: Real,
    zero_point: Real,
    format: IntegerFormat,
    axis: int | None = None,
    *,
    check: bool = False,
) -> torch.Tensor:
    """Quantize and dequantize with a zero point.

    ``(saturate(round_half_even(x / scale) + zero_point) - zero_point) * scale``.

    The gradient of ``x`` is the upstream gradient where x lies in the representable range
    ``[(qmin - zero_point) * scale, (qmax - zero_point) * scale]``, edges included, and 0 elsewhere;
    scale and zero point get none.

    Shapes: x: any; the result has the same, and its dtype. scale, zero_point: ``()``, or
        ``(x.shape[axis],)``.
    Units: scale: real units per integer step.
    Edge case: ±inf saturates. NaN stays NaN, unless ``check`` refuses it. What depends on values is checked
        in eager mode only, not while compiling.

    Raises:
        QuantizerValueError: a scale is not a positive float32, a zero point no integer of the format, or x
            is checked and holds NaN.
        QuantizerTypeError: x is not a float tensor.
        QuantizerShapeError: a parameter has the wrong shape.
        AxisError: x has no such axis.

    Source: ONNX QuantizeLinear and DequantizeLinear, opset 13; Krishnamoorthi 2018, "Quantizing deep
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
    require_float(x)
    if check:
        require_no_nan(x)
    granularity = granularity_of(axis)
    step = read_parameter("scale", scale, x, granularity).to(x.device, torch.float32)
    zero = read_parameter("zero_point", zero_point, x, granularity).to(x.device, torch.float32)
    require_scale(step)
    _require_zero_point(zero, format)
    # Saturating before the zero point is added keeps the sum exact, and then it cancels.
    low, high = format.qmin - zero, format.qmax - zero
    return clipped(_affine_values, x, low * step, high * step, step, low, high)


def _require_zero_point(zero_point: torch.Tensor, format: IntegerFormat) -> None:
    if torch.compiler.is_compiling():
        return
    allowed = (zero_point >= format.qmin) & (zero_point <= format.qmax) & (zero_point % 1 == 0)
    if not bool(allowed.all()):
        wrong = float(zero_point[~allowed].reshape(-1)[0])
        raise QuantizerValueError(
            f"zero point {wrong:g} is not a {format.name}, expected {format.qmin} to {format.qmax}"
        )


def _affine_values(
    x: torch.Tensor, scale: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    return rounded_steps(x, scale).clamp_(low, high).mul_(scale).add_(0.0)


_Gradients = tuple[torch.Tensor | None, ...]


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> torch.Tensor:
        ctx.save_for_backward(x, amax)
        ctx.format = format
        return fresh(values_of(x, amax, format))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> _Gradients:
        x, amax = ctx.saved_tensors
        wide, bound = x.to(torch.float32), amax.to(torch.float32)
        inside = (wide >= -bound) & (wide <= bound)
        values = values_of(wide, bound, ctx.format)
        slope = torch.where(inside, values - wide, values) / bound.clamp_min(FAINT_AMAX)
        learned = pass_where(bound > FAINT_AMAX, grad_outputs[0].to(torch.float32) * slope)
        return pass_where(inside, grad_outputs[0]), learned.sum_to_size(amax.shape).to(amax.dtype), None


def learned_fake_quantize(x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> torch.Tensor:
    """The values of ``scaled_quantize.fake_quantize``, with a gradient for amax too.

    The gradient of ``x`` is the upstream one where ``|x| <= amax``, otherwise 0. ``dy/damax`` is ``y / amax``
    where x is clipped, which is ±1, as in PACT; inside it is ``(y - x) / amax``, the rounding error's share,
    as in LSQ: together what autograd makes of ``round(clamp(x, -amax, amax) / scale) * scale`` with ``scale =
    amax / qmax`` and a straight-through rounding. LSQ's factor on the gradient is left to the learning rate.

    Args:
        x: the tensor; computed in float32 for every float dtype.
        amax: the largest magnitude that is represented.
        format: bits, sign and range of the integers.

    Shapes: x: any; the result has the same, and its dtype. amax: broadcasts to it.
    Edge case: An amax not above 2^-24 gives 0, and gets gradient 0: it has died. NaN stays NaN, and makes the
        gradient of amax NaN.

    Raises: QuantizerValueError: amax is negative or not finite. QuantizerTypeError: x is not a float tensor,
        or the format unsigned and x holds negative values.

    Source: Choi et al. 2018, "PACT: Parameterized clipping activation for quantized neural networks", section
        3; Esser et al. 2020, "Learned step size quantization", section 2.1.

    Example:
        >>> x = torch.tensor([-2.0, 0.3, 1.0], requires_grad=True)
        >>> amax = torch.tensor(1.0, requires_grad=True)
        >>> learned_fake_quantize(x, amax, IntegerFormat(2, signed=True, narrow_range=True)).sum().backward()
        >>> x.grad.tolist(), round(amax.grad.item(), 4)
        ([0.0, 1.0, 1.0], -1.3)
    """
    require_float(x)
    if not format.signed:
        require_not_negative(x)
    require_amax(amax)
    result: torch.Tensor = _Learned.apply(x, amax.to(x.device), format)  # type: ignore[no-untyped-call]
    return result
