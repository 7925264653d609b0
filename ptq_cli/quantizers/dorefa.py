"""DoReFa's quantizer of k bits on [0, 1], and what brings a tensor there and away again.

Computed in float32 for every float dtype; the gradient passes the rounding as if it were not there.
"""

import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.quantizers.grid import require_float
from ptq_cli.quantizers.straight_through import apply_straight_through


def k_bit_quantize(x: torch.Tensor, k: int) -> torch.Tensor:
    """Round to the nearest of 2^k levels from 0 to 1: ``round((2^k - 1) x) / (2^k - 1)``; ``dy/dx = 1``.

    Shapes:
        x: any; the result has the same, and its dtype.

    Edge case:
        Values outside [0, 1] are rounded to the same grid and not clamped. Ties go to the even integer. NaN
        stays NaN.

    Raises:
        QuantizerValueError: k is below 1.
        QuantizerTypeError: k is not an integer, or x is not a float tensor.

    Source:
        Zhou et al. 2016, "DoReFa-Net: Training low bitwidth convolutional neural networks with low
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
    """Return the values of ``k_bit_quantize``, without its gradient.

    Shapes:
        x: any; the result has the same, and its dtype.

    Raises:
        QuantizerValueError, QuantizerTypeError: as ``k_bit_quantize``.

    Source:
        SpikingJelly, ``activation_based.quantize.k_bit_quantize_forward``.

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

    Shapes:
        x: any; w, b: broadcast against it.

    Edge case:
        As ``k_bit_quantize``.

    Raises:
        QuantizerValueError, QuantizerTypeError: as ``k_bit_quantize``.

    Source:
        SpikingJelly, ``activation_based.quantize.affine_k_bit_quantize``.

    Example:
        >>> w, b = torch.tensor(2.0), torch.tensor(-1.0)
        >>> affine_k_bit_quantize(torch.tensor([0.1, 0.9]), 1, w, b).tolist()
        [-1.0, 1.0]
    """
    return w * k_bit_quantize(x, k) + b


def clamp_by_linear(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Map a tensor linearly to [0, 1): ``(x - min) / (max + eps - min)``.

    The gradient is the formula's own, through the extremes too; equal extremes share it.

    Shapes:
        x: any with at least one element; the result has the same, and its dtype.

    Edge case:
        A constant becomes 0, and NaN where eps is too small to be seen beside it, as 1e-5 is from 256 on.

    Raises:
        QuantizerShapeError: x has no element.
        QuantizerTypeError: x is not a float tensor.

    Source:
        SpikingJelly, ``activation_based.quantize.clamp_by_linear``.

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
