"""DoReFa's quantizer of k bits on [0, 1], and what brings a tensor there and away again.

Computed in float32 for every float dtype; the gradient passes the rounding as if it were not there.
"""

from dataclasses import dataclass

import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.grid import (
    granularity_of,
    read_parameter,
    require_float,
    require_no_nan,
    require_scale,
)
from ptq_cli.quantizers.straight_through import apply_straight_through


def k_bit_quantize(x: torch.Tensor, k: int) -> torch.Tensor:
    """Round to the nearest of 2^k levels from 0 to 1: ``round((2^k - 1) x) / (2^k - 1)``; ``dy/dx = 1``.

    Shapes: x: any; the result has the same, and its dtype.
    Edge case: Values outside [0, 1] are rounded to the same grid and not clamped. Ties go to the even
        integer. NaN stays NaN.

    Raises: QuantizerValueError: k is below 1. QuantizerTypeError: k is not an integer, or x is not a float
        tensor.

    Source: Zhou et al. 2016, "DoReFa-Net: Training low bitwidth convolutional neural networks with low
        bitwidth gradients", equation 5; SpikingJelly, ``activation_based.quantize.k_bit_quantize``.

    Example:
        >>> x = torch.tensor([0.1, 0.4, 1.2], requires_grad=True)
        >>> y = k_bit_quantize(x, 1)
        >>> y.tolist()
        [0.0, 0.0, 1.0]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [1.0, 1.0, 1.0]
    """
    _require_bits(k)
    require_float(x)
    return apply_straight_through(x, lambda value: k_bit_quantize_forward(value, k))


def k_bit_quantize_forward(x: torch.Tensor, k: int) -> torch.Tensor:
    """The values of ``k_bit_quantize``, without its gradient.

    Shapes: x: any; the result has the same, and its dtype.
    Source: SpikingJelly, ``activation_based.quantize.k_bit_quantize_forward``.

    Example:
        >>> k_bit_quantize_forward(torch.tensor([0.3, 0.7]), 2)
        tensor([0.3333, 0.6667])
    """
    _require_bits(k)
    levels = torch.full((), float((1 << k) - 1), device=x.device)
    return (torch.round(x.to(torch.float32) * levels) / levels).to(x.dtype)


def affine_k_bit_quantize(x: torch.Tensor, k: int, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``w * k_bit_quantize(x, k) + b``.

    ``dy/dx = w``, ``dy/dw`` is the quantized x, ``dy/db = 1``.

    Shapes: x: any; w, b: broadcast against it.
    Edge case: As ``k_bit_quantize``.
    Source: SpikingJelly, ``activation_based.quantize.affine_k_bit_quantize``.

    Example:
        >>> w, b = torch.tensor(2.0), torch.tensor(-1.0)
        >>> affine_k_bit_quantize(torch.tensor([0.1, 0.9]), 1, w, b).tolist()
        [-1.0, 1.0]
    """
    return w * k_bit_quantize(x, k) + b


def clamp_by_linear(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Map a tensor linearly to [0, 1): ``(x - min) / (max + eps - min)``.

    The gradient is the formula's own, through the extremes too; equal extremes share it.

    Shapes: x: any with at least one element; the result has the same, and its dtype.
    Edge case: A constant becomes 0, and NaN where eps is too small to be seen beside it, as 1e-5 is from 256
        on.

    Raises: QuantizerShapeError: x has no element. QuantizerTypeError: x is not a float tensor.

    Source: SpikingJelly, ``activation_based.quantize.clamp_by_linear``.

    Example:
        >>> [f"{value:.4f}" for value in clamp_by_linear(torch.tensor([-1.0, 0.0, 3.0])).tolist()]
        ['0.0000', '0.2500', '1.0000']
    """
    require_float(x)
    if not x.numel():
        raise QuantizerShapeError(f"a tensor of shape {tuple(x.shape)} has no smallest and largest value")
    wide = x.to(torch.float32)
    smallest, largest = wide.min(), wide.max() + eps
    return ((wide - smallest) / (largest - smallest)).to(x.dtype)


def _require_bits(k: int) -> None:
    if k < 1:
        raise QuantizerValueError(f"{k} bits are too few, expected at least 1")
    if not isinstance(k, int):
        raise QuantizerTypeError(f"the number of bits must be an integer, got {k!r}")


# What an ONNX file holds of a tensor of DoReFa levels: odd integers, which any kernel multiplies.
#
# DoReFa's 2^k levels from -amax to amax, ``2 amax q / (2^k - 1) - amax`` for the k-bit number q, leave out
# 0: no integer zero point stands between two of them. Twice the number less its middle, ``2q - (2^k - 1)``,
# is an odd integer, and the level is that integer times ``amax / (2^k - 1)``, with a zero point of 0. So
# DequantizeLinear computes it; a file stores the k-bit number, and gathers the odd integer from a table of
# 2^k.
_MOST_BITS = 7  # The odd integers of 8 bits, up to 255, do not fit into int8.


@dataclass(frozen=True, eq=False)
class DorefaLevels:
    """A tensor of DoReFa levels.

    Attributes:
        indices: the k-bit numbers, as uint8.
        table: the odd integer that each number stands for, as int8.
        scale: DequantizeLinear's, real units per integer.
        axis: the axis that the scales count along, or None for one scale.

    Shapes: indices: the tensor's. table: ``(2^k,)``. scale: ``()``, or ``(indices.shape[axis],)``.
    """

    indices: torch.Tensor
    table: torch.Tensor
    scale: torch.Tensor
    axis: int | None

    def values(self) -> torch.Tensor:
        """Values that Gather and DequantizeLinear compute, in float32."""
        integers = self.table[self.indices.to(torch.int64)].to(torch.float32)
        shape = granularity_of(self.axis).broadcast_shape(tuple(self.indices.shape))
        return integers * self.scale.reshape(shape)


def encode_dorefa(x: torch.Tensor, scale: torch.Tensor, k: int, *, axis: int | None = None) -> DorefaLevels:
    """A tensor as the nearest of DoReFa's 2^k levels from ``-amax`` to ``amax``.

    This is ``affine_k_bit_quantize`` of ``(clamp(x, -amax, amax) + amax) / (2 amax)`` with ``w = 2 amax`` and
    ``b = -amax``: the same levels, up to the last bit of a float32. A weight is mapped linearly, and not by
    tanh as in the article: tanh shapes what is trained with it, and would only bend a trained weight.

    Args:
        x: the tensor.
        scale: ``amax / (2^k - 1)``: half the distance of two levels.
        k: 1 to 7.
        axis: one scale for each index along it; None for one for the tensor.

    Shapes: x: any; scale: ``()``, or ``(x.shape[axis],)``.
    Units: scale: real units per odd integer.
    Edge case: ±inf saturates. 0 becomes a level next to it, half a distance away: there is none at 0.

    Raises: QuantizerValueError: k is out of range, a scale is not positive and finite, or x holds NaN.
        QuantizerTypeError: x is not a float tensor. QuantizerShapeError, AxisError: the scale does not fit.

    Source: Zhou et al. 2016, "DoReFa-Net", equation 5; SpikingJelly, ``affine_k_bit_quantize``; ONNX Gather
        and DequantizeLinear, opset 13.

    Example:
        >>> found = encode_dorefa(torch.tensor([-9.0, -0.2, 0.0, 0.9]), torch.tensor(0.5), 2)
        >>> found.indices.tolist(), found.table.tolist(), found.values().tolist()
        ([0, 1, 2, 2], [-3, -1, 1, 3], [-1.5, -0.5, 0.5, 0.5])
    """
    if not 1 <= k <= _MOST_BITS:
        raise QuantizerValueError(
            f"{k} bits is outside 1 to {_MOST_BITS}", hint="the odd integers of 8 bits do not fit into int8"
        )
    require_float(x)
    require_no_nan(x)
    wide = x.detach().to(torch.float32)
    step = read_parameter("scale", scale, wide, granularity_of(axis)).to(wide.device, torch.float32)
    require_scale(step)
    levels = (1 << k) - 1
    amax = step * levels
    position = (torch.clamp(wide, -amax, amax) + amax) / (2 * amax)
    numbers = torch.round(k_bit_quantize_forward(position, k) * levels).to(torch.uint8)
    table = torch.arange(-levels, levels + 1, 2, dtype=torch.int8, device=wide.device)
    return DorefaLevels(numbers, table, scale.detach().to(torch.float32), axis)
