"""NVIDIA pytorch-quantization's ``tensor_quant`` and ``fake_tensor_quant``, quirks included.

For reproducing what that toolkit gives. Its ``scale`` is the reciprocal of ONNX's, ``qmax / amax``: it
multiplies the input and divides the integers. Results may therefore differ from ``scaled``, and from what
a runtime computes, by one integer step at a tie and by one float32 ulp elsewhere.
"""

from typing import Any

import torch

from ptq_cli.core.arithmetic import ZERO_AMAX
from ptq_cli.core.errors import RecipeValueError, UsageError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.straight_through import pass_where

Quantized = tuple[torch.Tensor, torch.Tensor]


class _TensorQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> Quantized:
        ctx.save_for_backward(inputs.abs() <= amax)
        outputs, scale = _quantize(inputs, amax, format)
        scale = scale.to(inputs.dtype)
        if bool(torch.isinf(scale).any()):
            raise RecipeValueError(
                f"amax is too small for {inputs.dtype}: its scale of qmax / amax is infinite"
            )
        ctx.mark_non_differentiable(scale)
        return outputs, scale

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (passes,) = ctx.saved_tensors
        return pass_where(passes, grad_outputs[0]), None, None


class _FakeTensorQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> torch.Tensor:
        ctx.save_for_backward(inputs.abs() <= amax)
        outputs, scale = _quantize(inputs, amax, format)
        return outputs / scale.to(inputs.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (passes,) = ctx.saved_tensors
        return pass_where(passes, grad_outputs[0]), None, None


def tensor_quant(
    inputs: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> Quantized:
    """Return ``clip(round_half_even(inputs * scale), qmin, qmax)`` and NVIDIA's ``scale = qmax / amax``.

    The gradient of ``inputs`` passes where ``|inputs| <= amax``, edge included; amax and scale have none.

    Shapes:
        inputs: any; the integers, in the inputs' dtype, have the same.
        amax: broadcasts to inputs; the scale has the same.

    Units:
        scale: integer steps per real unit, the reciprocal of ONNX's scale.

    Edge case:
        An amax not above 2^-24 gives 0 and scale 1 (an infinite input there gives NaN).

    Raises:
        RecipeValueError: amax is negative, num_bits out of range, or the scale too large for the
            inputs' dtype.
        UsageError: amax does not broadcast to inputs, or unsigned and the inputs hold negative values.

    Source:
        NVIDIA pytorch-quantization 2.2.1, ``tensor_quant.TensorQuantFunction``.

    Example:
        >>> outputs, scale = tensor_quant(torch.tensor([-0.5, 0.1, 2.0]), torch.tensor(1.0))
        >>> outputs.tolist(), scale.item()
        ([-64.0, 13.0, 127.0], 127.0)
    """
    format = _checked(inputs, amax, num_bits, unsigned, narrow_range)
    result: Quantized = _TensorQuant.apply(inputs, amax.detach(), format)  # type: ignore[no-untyped-call]
    return result


def fake_tensor_quant(
    inputs: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> torch.Tensor:
    """Return ``tensor_quant``'s integers divided by its scale.

    Shapes:
        inputs: any; the result has the same, and its dtype.
        amax: broadcasts to inputs.

    Edge case:
        An amax not above 2^-24 gives 0. Where float16 inputs have a scale above 65504, the result is 0.

    Raises:
        RecipeValueError: amax is negative, or num_bits out of range.
        UsageError: amax does not broadcast to inputs, or unsigned and the inputs hold negative values.

    Source:
        NVIDIA pytorch-quantization 2.2.1, ``tensor_quant.FakeTensorQuantFunction``.

    Example:
        >>> fake_tensor_quant(torch.tensor([0.5, 0.6, 2.0]), torch.tensor(1.0), num_bits=2).tolist()
        [0.0, 1.0, 1.0]
    """
    format = _checked(inputs, amax, num_bits, unsigned, narrow_range)
    result: torch.Tensor = _FakeTensorQuant.apply(inputs, amax.detach(), format)  # type: ignore[no-untyped-call]
    return result


def _checked(
    inputs: torch.Tensor, amax: torch.Tensor, num_bits: int, unsigned: bool, narrow_range: bool
) -> IntegerFormat:
    if unsigned and bool((inputs < 0).any()):
        raise UsageError(
            "an unsigned quantizer got negative values", hint="pass unsigned=False, or clamp the tensor at 0"
        )
    if bool((amax < 0).any()):
        raise RecipeValueError(f"amax must not be negative, got {amax.min().item():g}")
    try:
        amax.expand(inputs.shape)
    except RuntimeError as error:
        raise UsageError(
            f"amax of shape {tuple(amax.shape)} does not broadcast to inputs of shape {tuple(inputs.shape)}",
            hint="keep the reduced axes with size 1",
        ) from error
    return IntegerFormat(num_bits, signed=not unsigned, narrow_range=narrow_range and not unsigned)


def _quantize(inputs: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> Quantized:
    wide, bound = inputs.float(), amax.float()
    # A tensor, because torch turns a plain number over a tensor into a product with the reciprocal.
    scale = torch.tensor(float(format.qmax), device=bound.device) / bound
    dead = bound <= ZERO_AMAX
    # Multiplying by 0 rather than writing 0 is NVIDIA's way: it turns an infinite input into NaN.
    steps = torch.round(wide * scale.masked_fill(dead, 0.0))
    outputs = torch.clamp(steps, format.qmin, format.qmax)
    return outputs.to(inputs.dtype), scale.masked_fill(dead, 1.0)
