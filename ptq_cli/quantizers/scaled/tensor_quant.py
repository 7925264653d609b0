"""NVIDIA pytorch-quantization's ``tensor_quant`` and the fake forms, quirks included.

For reproducing what that toolkit gives, and for training with it. Its ``scale`` is the reciprocal of ONNX's,
``qmax / amax``: it multiplies the input and divides the integers. Results may therefore differ from
``scaled_quantize.fake_quantize``, and from what a runtime computes, by one integer step at a tie and by one
float32 ulp elsewhere. What is exported computes as ``scaled_quantize`` and ``affine`` do; there a real 0 lies
on the grid.
"""

from functools import partial

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.grid import (
    FAINT_AMAX,
    integer_format,
    require_broadcasts,
    require_float,
    require_no_nan,
    require_not_negative,
)
from ptq_cli.quantizers.straight_through import clipped


def tensor_quant(
    inputs: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    *,
    check: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``clip(round_half_even(inputs * scale), qmin, qmax)`` and NVIDIA's ``scale = qmax / amax``.

    The gradient of ``inputs`` passes where ``|inputs| <= amax``, edge included; amax and scale have none.

    Args:
        inputs: the tensor; computed in float32 for every float dtype.
        amax: the largest magnitude that is represented.
        num_bits: 2 to 16.
        unsigned: the integers start at 0, and ``narrow_range`` has no meaning.
        narrow_range: leave out the most negative integer.
        check: refuse NaN, which otherwise stays NaN.

    Shapes: inputs: any; the integers, in the inputs' dtype, have the same. amax: broadcasts to inputs; the
        scale has the same.
    Units: scale: integer steps per real unit, the reciprocal of ONNX's scale.
    Edge case: An amax not above 2^-24 gives 0 and scale 1 (an infinite input there gives NaN). What depends
        on values is checked in eager mode only, not while compiling.

    Raises:
        QuantizerValueError: amax is negative, num_bits out of range, the scale too large for the inputs'
            dtype, or NaN among inputs that are checked.
        QuantizerTypeError: inputs is not a float tensor, or unsigned and they hold negative values.
        QuantizerShapeError: amax does not broadcast to inputs.

    Source: NVIDIA pytorch-quantization 2.2.1, ``tensor_quant.TensorQuantFunction``.

    Example:
        The toolkit's own:

        >>> inputs = torch.rand(10, generator=torch.Generator().manual_seed(12345))
        >>> inputs
        tensor([0.9817, 0.8796, 0.9921, 0.4611, 0.0832, 0.1784, 0.3674, 0.5676, 0.3376,
                0.2119])
        >>> tensor_quant(inputs, inputs.abs().max())
        (tensor([126., 113., 127.,  59.,  11.,  23.,  47.,  73.,  43.,  27.]), tensor(128.0057))
    """
    format = _checked(inputs, amax, num_bits, unsigned, narrow_range, check)
    bound = amax.detach().to(inputs.device)
    multiplier, scale = _scales(bound, format)
    scale = scale.to(inputs.dtype)
    if not torch.compiler.is_compiling() and bool(torch.isinf(scale).any()):
        raise QuantizerValueError(
            f"amax is too small for {inputs.dtype}: its scale of qmax / amax is infinite"
        )
    chain = partial(_integers, low=format.qmin, high=format.qmax)
    return clipped(chain, inputs, None, _edge(bound, inputs), multiplier), scale


def fake_tensor_quant(
    inputs: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    *,
    check: bool = False,
) -> torch.Tensor:
    """Return ``tensor_quant``'s integers divided by its scale; the arguments and the gradient are the same.

    Shapes: inputs: any; the result has the same, and its dtype. amax: broadcasts to inputs.
    Edge case: An amax not above 2^-24 gives 0. Where float16 inputs have a scale above 65504, the result is
        0. NaN stays NaN. Compiled, results in float16 and bfloat16 may differ in their last bit: the compiler
        leaves out the rounding of the scale to that dtype.

    Raises: QuantizerValueError: amax is negative, num_bits out of range, or NaN among inputs that are
        checked. QuantizerTypeError: inputs is not a float tensor, or unsigned and they hold negative values.
        QuantizerShapeError: amax does not broadcast to inputs.

    Source: NVIDIA pytorch-quantization 2.2.1, ``tensor_quant.FakeTensorQuantFunction``.

    Example:
        The toolkit's own:

        >>> inputs = torch.rand(10, generator=torch.Generator().manual_seed(12345))
        >>> fake_tensor_quant(inputs, inputs.abs().max())
        tensor([0.9843, 0.8828, 0.9921, 0.4609, 0.0859, 0.1797, 0.3672, 0.5703, 0.3359,
                0.2109])
    """
    format = _checked(inputs, amax, num_bits, unsigned, narrow_range, check)
    bound = amax.detach()
    multiplier, scale = _scales(bound, format)
    chain = partial(_fake, low=format.qmin, high=format.qmax)
    return clipped(chain, inputs, None, _edge(bound, inputs), multiplier, scale.to(inputs.dtype))


def fake_affine_tensor_quant(
    inputs: torch.Tensor,
    min_range: torch.Tensor,
    max_range: torch.Tensor,
    num_bits: int = 8,
    *,
    check: bool = False,
) -> torch.Tensor:
    """Quantize and dequantize to the 2^num_bits levels between two values.

    ``(clip(round(inputs / step) - zero, qmin, qmax) + zero) * step`` with ``step = (max_range - min_range) /
    (2^num_bits - 1)`` and ``zero = round(min_range / step) - qmin``. The gradient of ``inputs`` passes where
    ``min_range <= inputs <= max_range``; the range has none.

    Args:
        inputs: the tensor; computed in float32.
        min_range: the smallest value that is represented, but for a part of a step.
        max_range: the largest, likewise.
        num_bits: 2 to 16.
        check: refuse NaN, which otherwise stays NaN.

    Shapes: inputs: any; the result has the same, and its dtype. min_range, max_range: broadcast to inputs.
    Edge case: An empty range gives NaN. A range without 0 is not widened to hold it.

    Raises: QuantizerValueError: num_bits out of range, or NaN among inputs that are checked.
        QuantizerTypeError: inputs is not a float tensor.

    Source: NVIDIA pytorch-quantization 2.2.1, ``tensor_quant.FakeAffineTensorQuantFunction``.

    Example:
        >>> low, high = torch.tensor(-1.0), torch.tensor(2.0)
        >>> fake_affine_tensor_quant(torch.tensor([-3.0, 0.4, 1.6]), low, high, num_bits=2).tolist()
        [-1.0, 0.0, 2.0]
    """
    require_float(inputs)
    if check:
        require_no_nan(inputs)
    format = IntegerFormat(num_bits, signed=True)
    low, high = min_range.detach().to(torch.float32), max_range.detach().to(torch.float32)
    levels = torch.full((), float((1 << num_bits) - 1), device=low.device)
    step = (high - low) / levels
    zero = torch.round(low / step) - format.qmin
    chain = partial(_affine, qmin=format.qmin, qmax=format.qmax)
    return clipped(chain, inputs, low, high, step, zero)


def _checked(
    inputs: torch.Tensor, amax: torch.Tensor, num_bits: int, unsigned: bool, narrow_range: bool, check: bool
) -> IntegerFormat:
    require_float(inputs)
    if unsigned:
        require_not_negative(inputs)
    if not torch.compiler.is_compiling() and bool((amax < 0).any()):
        raise QuantizerValueError(f"amax must not be negative, got {float(amax.detach().min()):g}")
    if check:
        require_no_nan(inputs)
    return integer_format(num_bits, unsigned, narrow_range)


def _scales(amax: torch.Tensor, format: IntegerFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiplier of the inputs, and divisor of the integers by."""
    bound = amax.to(torch.float32)
    # A tensor, because torch turns a plain number over a tensor into a product with the reciprocal.
    scale = torch.full((), float(format.qmax), device=bound.device) / bound
    dead = bound <= FAINT_AMAX
    # Multiplying by 0 rather than writing 0 is NVIDIA's way: it turns an infinite input into NaN.
    return scale.masked_fill(dead, 0.0), scale.masked_fill(dead, 1.0)


def _edge(amax: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """End of the range where the gradient passes; torch compares a single number in the tensor's dtype."""
    require_broadcasts("amax", amax, inputs)
    return amax.to(inputs.dtype) if amax.ndim == 0 < inputs.ndim else amax


def _integers(inputs: torch.Tensor, multiplier: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return (inputs.to(torch.float32) * multiplier).round_().clamp_(low, high)


def _fake(
    inputs: torch.Tensor, multiplier: torch.Tensor, scale: torch.Tensor, low: int, high: int
) -> torch.Tensor:
    return _integers(inputs, multiplier, low, high).to(inputs.dtype).div_(scale)


def _affine(
    inputs: torch.Tensor, step: torch.Tensor, zero: torch.Tensor, qmin: int, qmax: int
) -> torch.Tensor:
    steps = (inputs.to(torch.float32) / step).round_().sub_(zero).clamp_(qmin, qmax)
    return steps.add_(zero).mul_(step)
