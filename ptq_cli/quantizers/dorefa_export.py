"""What an ONNX file holds of a tensor of DoReFa levels: odd integers, which any kernel multiplies.

DoReFa's 2^k levels from -amax to amax, ``2 amax q / (2^k - 1) - amax`` for the k-bit number q, leave out 0:
no integer zero point stands between two of them. Twice the number less its middle, ``2q - (2^k - 1)``, is an
odd integer, and the level is that integer times ``amax / (2^k - 1)``, with a zero point of 0. So
DequantizeLinear computes it; a file stores the k-bit number, and gathers the odd integer from a table of 2^k.
"""

from dataclasses import dataclass

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.dorefa import k_bit_quantize_forward
from ptq_cli.quantizers.grid import granularity_of, read_parameter, require_float, require_no_nan

MOST_BITS = 7
"""The odd integers of 8 bits, up to 255, do not fit into int8."""


@dataclass(frozen=True, eq=False)
class DorefaLevels:
    """A tensor of DoReFa levels.

    Attributes:
        indices: the k-bit numbers, as uint8.
        table: the odd integer that each number stands for, as int8.
        scale: DequantizeLinear's, real units per integer.
        axis: the axis that the scales count along, or None for one scale.

    Shapes:
        indices: the tensor's. table: ``(2^k,)``. scale: ``()``, or ``(indices.shape[axis],)``.
    """

    indices: torch.Tensor
    table: torch.Tensor
    scale: torch.Tensor
    axis: int | None

    def values(self) -> torch.Tensor:
        """Return what Gather and DequantizeLinear make of them, in float32."""
        integers = self.table[self.indices.to(torch.int64)].to(torch.float32)
        shape = granularity_of(self.axis).broadcast_shape(tuple(self.indices.shape))
        return integers * self.scale.reshape(shape)


def encode_dorefa(x: torch.Tensor, scale: torch.Tensor, k: int, *, axis: int | None = None) -> DorefaLevels:
    """Return a tensor as the nearest of DoReFa's 2^k levels from ``-amax`` to ``amax``.

    This is ``affine_k_bit_quantize`` of ``(clamp(x, -amax, amax) + amax) / (2 amax)`` with ``w = 2 amax`` and
    ``b = -amax``: the same levels, up to the last bit of a float32. A weight is mapped linearly, and not by
    tanh as in the article: tanh shapes what is trained with it, and would only bend a trained weight.

    Args:
        x: the tensor.
        scale: ``amax / (2^k - 1)``: half the distance of two levels.
        k: 1 to 7.
        axis: one scale for each index along it; None for one for the tensor.

    Shapes:
        x: any; scale: ``()``, or ``(x.shape[axis],)``.

    Units:
        scale: real units per odd integer.

    Edge case:
        ±inf saturates. 0 becomes a level next to it, half a distance away: there is none at 0.

    Raises:
        QuantizerValueError: k is out of range, a scale is not positive and finite, or x holds NaN.
        QuantizerTypeError: x is not a float tensor.
        QuantizerShapeError, AxisError: the scale does not fit.

    Source:
        Zhou et al. 2016, "DoReFa-Net", equation 5; SpikingJelly, ``affine_k_bit_quantize``; ONNX Gather and
        DequantizeLinear, opset 13.

    Example:
        >>> found = encode_dorefa(torch.tensor([-9.0, -0.2, 0.0, 0.9]), torch.tensor(0.5), 2)
        >>> found.indices.tolist(), found.table.tolist(), found.values().tolist()
        ([0, 1, 2, 2], [-3, -1, 1, 3], [-1.5, -0.5, 0.5, 0.5])
    """
    if not 1 <= k <= MOST_BITS:
        raise QuantizerValueError(
            f"{k} bits is outside 1 to {MOST_BITS}", hint="the odd integers of 8 bits do not fit into int8"
        )
    require_float(x)
    require_no_nan(x)
    wide = x.detach().to(torch.float32)
    step = read_parameter("scale", scale, wide, granularity_of(axis)).to(wide.device, torch.float32)
    if not bool((torch.isfinite(step) & (step > 0)).all()):
        raise QuantizerValueError("a scale must be positive and finite")
    levels = (1 << k) - 1
    amax = step * levels
    position = (torch.clamp(wide, -amax, amax) + amax) / (2 * amax)
    numbers = torch.round(k_bit_quantize_forward(position, k) * levels).to(torch.uint8)
    table = torch.arange(-levels, levels + 1, 2, dtype=torch.int8, device=wide.device)
    return DorefaLevels(numbers, table, scale.detach().to(torch.float32), axis)
