"""Fake quantization whose amax learns: clipped learning, with the gradient of the step size."""

from typing import Any

import torch

from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.grid import FAINT_AMAX, require_amax, require_float, require_not_negative
from ptq_cli.quantizers.scaled.scaled_quantize import values_of
from ptq_cli.quantizers.straight_through import fresh, pass_where

Gradients = tuple[torch.Tensor | None, ...]


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> torch.Tensor:
        ctx.save_for_backward(x, amax)
        ctx.format = format
        return fresh(values_of(x, amax, format))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Gradients:
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
