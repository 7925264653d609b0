"""What the uniform quantizers share: how parameters are read, checked and laid out against a tensor.

What depends on values is checked in eager mode only: a compiled graph has no branch on them. There a NaN
stays a NaN, and a negative amax gives a meaningless result rather than an error.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerTypeError, QuantizerValueError
from ptq_cli.core.formats import Granularity, IntegerFormat, PerAxis, PerTensor

Real = torch.Tensor | float | Sequence[float]  # A parameter: a tensor, or plain numbers.
FLOAT32_MAX = float(np.finfo(np.float32).max)
# An amax not above this has died, as in NVIDIA's pytorch-quantization. Exported scales go further down.
FAINT_AMAX = 2.0**-24


def integer_format(bits: int, unsigned: bool, narrow_range: bool) -> IntegerFormat:
    """The format; an unsigned one ignores ``narrow_range``, which has no meaning there."""
    return IntegerFormat(bits, signed=not unsigned, narrow_range=narrow_range and not unsigned)


def integer_dtype(format: IntegerFormat) -> torch.dtype:
    """The torch dtype that holds the format's integers."""
    dtype: torch.dtype = getattr(torch, format.storage.name)
    return dtype


def granularity_of(axis: int | None) -> Granularity:
    """One scale a tensor for None, otherwise one for each index along ``axis``."""
    return PerTensor() if axis is None else PerAxis(axis)


def read_parameter(name: str, value: Real, x: torch.Tensor, granularity: Granularity) -> torch.Tensor:
    """A parameter without its gradient history, laid out to broadcast against ``x``.

    Plain numbers become float64, on the CPU: they are rounded once, when what is made of them becomes
    float32. A tensor of fewer bits becomes float32, where it lies.

    Shapes: value: ``granularity.scale_shape(x.shape)``; the result ``granularity.broadcast_shape(x.shape)``.
    """
    tensor = (
        value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)
    )
    wanted = granularity.scale_shape(tuple(x.shape))
    if tuple(tensor.shape) != wanted:
        raise QuantizerShapeError(
            f"{name} has shape {tuple(tensor.shape)}, expected {wanted} for {granularity} of shape "
            f"{tuple(x.shape)}",
            hint="pass one value for the tensor with axis=None, or one for each index along axis",
        )
    if tensor.dtype is not torch.float64:
        tensor = tensor.to(torch.float32)
    return tensor.reshape(granularity.broadcast_shape(tuple(x.shape)))


def require_float(x: torch.Tensor) -> None:
    """Refuse a tensor that is not one of floats."""
    if not x.is_floating_point():
        raise QuantizerTypeError(
            f"a quantizer expects a float tensor, got {x.dtype}", hint="convert it with .float()"
        )


def require_amax(amax: torch.Tensor) -> None:
    """Refuse an amax that is negative, NaN or not finite in float32."""
    if torch.compiler.is_compiling() or not amax.numel():
        return
    low, high = (float(edge) for edge in torch.aminmax(amax.detach()))
    # Written so that NaN fails it too. An amax that only float64 holds would become an infinite scale.
    if not (low >= 0 and high <= FLOAT32_MAX):
        found = [float(value) for value in amax.reshape(-1)[:4]]
        raise QuantizerValueError(f"amax must be finite and not negative, got {found}")


def require_not_negative(x: torch.Tensor) -> None:
    """Refuse negative values, which an unsigned format does not have; -0.0 is not negative."""
    if torch.compiler.is_compiling() or not x.numel():
        return
    # One fast pass. A NaN hides what the smallest value is; only then every value is compared.
    smallest = float(x.detach().amin())
    if smallest < 0 or (np.isnan(smallest) and bool((x < 0).any())):
        raise QuantizerTypeError(
            "an unsigned quantizer got negative values", hint="use a signed format, or clamp the tensor at 0"
        )


def require_no_nan(x: torch.Tensor) -> None:
    """Refuse NaN, which has no integer."""
    if torch.compiler.is_compiling() or not x.numel():
        return
    # The smallest value is NaN if one is, and finding it allocates nothing.
    if np.isnan(float(x.detach().amin())):
        count = int(torch.isnan(x).sum())
        raise QuantizerValueError(
            f"NaN cannot be quantized; {count} of {x.numel()} values are NaN",
            hint="find the operation that computed them",
        )


def require_broadcasts(name: str, value: torch.Tensor, x: torch.Tensor) -> None:
    """Refuse a parameter that does not broadcast to the tensor's shape."""
    sizes = list(value.shape)
    own = list(x.shape)[x.ndim - len(sizes) :] if len(sizes) <= x.ndim else []
    if len(sizes) > x.ndim or any(mine not in (1, theirs) for mine, theirs in zip(sizes, own, strict=True)):
        raise QuantizerShapeError(
            f"{name} of shape {tuple(sizes)} does not broadcast to a tensor of shape {tuple(x.shape)}",
            hint="keep the other axes with size 1",
        )


def require_scale(scale: torch.Tensor) -> None:
    """Refuse a scale that is not positive, or not finite."""
    if torch.compiler.is_compiling():
        return
    if not bool((torch.isfinite(scale) & (scale > 0)).all()):
        found = scale.reshape(-1)[:4].tolist()
        raise QuantizerValueError(f"a scale must be positive and finite, got {found}")
