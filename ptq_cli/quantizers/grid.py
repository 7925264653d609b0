"""ONNX's QuantizeLinear and DequantizeLinear in PyTorch.

The twin of ``ptq_cli.core.arithmetic``, which defines the arithmetic; tests hold the two and ONNX Runtime
together bit for bit. The integers are kept as float32, which holds them exactly up to 24 bits, so that
NaN survives into the result instead of turning into some integer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ptq_cli.core.errors import RecipeValueError, UsageError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.granularity import Granularity, PerAxis, PerTensor

Real = torch.Tensor | float | Sequence[float]
"""A parameter: a tensor, or plain numbers."""


@dataclass(frozen=True)
class Grid:
    """The values that a quantized tensor can take: ``(q - zero_point) * scale`` for ``q`` in [qmin, qmax].

    Shapes:
        all: float32, on the tensor's device, broadcasting against it.

    Units:
        scale: real units per integer step, as in ONNX.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    qmin: torch.Tensor
    qmax: torch.Tensor


def to_integers(x: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Return ``saturate(round_half_even(x / scale) + zero_point)`` as float32.

    Shapes:
        x: float32 of any shape; the result has the same.

    Edge case:
        ±inf saturates; NaN stays NaN.

    Source:
        ONNX QuantizeLinear, opset 13.

    Example:
        >>> one = torch.tensor(1.0)
        >>> to_integers(torch.tensor([0.75, -9.0]), Grid(one / 2, one, -4 * one, 3 * one)).tolist()
        [3.0, -4.0]
    """
    # A true division: a product with the reciprocal misses many ties. ATen takes that short cut when the
    # divisor is a CPU scalar and x is on a GPU, which is why a grid lives on the tensor's device.
    steps = torch.round(x / grid.scale)
    # Saturating before the addition keeps it exact; float32 would round zero_point + 2^24.
    return torch.clamp(steps, grid.qmin - grid.zero_point, grid.qmax - grid.zero_point) + grid.zero_point


def to_values(q: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Return ``(q - zero_point) * scale``.

    Shapes:
        q: float32 integers of any shape; the result has the same.

    Edge case:
        A product beyond float32 is ±inf, as in ONNX Runtime.

    Source:
        ONNX DequantizeLinear, opset 13.

    Example:
        >>> one = torch.tensor(1.0)
        >>> to_values(torch.tensor([3.0, -4.0]), Grid(one / 2, one, -4 * one, 3 * one)).tolist()
        [1.0, -2.5]
    """
    return (q - grid.zero_point) * grid.scale


def integer_dtype(format: IntegerFormat) -> torch.dtype:
    """Return the torch dtype that holds the format's integers.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> integer_dtype(UINT8)
        torch.uint8
    """
    dtype: torch.dtype = getattr(torch, format.storage.name)
    return dtype


def granularity_of(axis: int | None) -> Granularity:
    """Return one scale a tensor for None, otherwise one for each index along ``axis``.

    Example:
        >>> granularity_of(None), granularity_of(0)
        (PerTensor(), PerAxis(axis=0))
    """
    return PerTensor() if axis is None else PerAxis(axis)


def read_parameter(
    name: str, value: Real, x: torch.Tensor, granularity: Granularity
) -> npt.NDArray[np.float64]:
    """Return a parameter as float64, which holds every float dtype exactly, after checking its shape.

    Shapes:
        value: ``granularity.scale_shape(x.shape)``; the result has the same.

    Raises:
        UsageError: the shape is another.
        RecipeValueError: the granularity's axis is none of the tensor's.

    Example:
        >>> read_parameter("amax", [1.0, 2.0], torch.zeros(2, 3), PerAxis(0)).tolist()
        [1.0, 2.0]
    """
    if isinstance(value, torch.Tensor):
        array = value.detach().to("cpu", torch.float64).numpy()
    else:
        array = np.asarray(value, dtype=np.float64)
    wanted = granularity.scale_shape(tuple(x.shape))
    if array.shape != wanted:
        raise UsageError(
            f"{name} has shape {array.shape}, {wanted} is wanted for {granularity} of shape {tuple(x.shape)}",
            hint="pass one value for the tensor with axis=None, or one for each index along axis",
        )
    return array


def broadcast_against(x: torch.Tensor, parameter: npt.ArrayLike, granularity: Granularity) -> torch.Tensor:
    """Return a parameter as float32 on the tensor's device, shaped to broadcast against it.

    Example:
        >>> broadcast_against(torch.zeros(2, 3), [1.0, 2.0], PerAxis(0)).shape
        torch.Size([2, 1])
    """
    array = np.asarray(parameter, dtype=np.float32)
    shaped = array.reshape(granularity.broadcast_shape(tuple(x.shape)))
    return torch.tensor(shaped, device=x.device)


def require_float(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as float32, without its gradient history.

    Raises:
        UsageError: ``x`` is no float tensor.

    Example:
        >>> require_float(torch.ones(1, dtype=torch.float16)).dtype
        torch.float32
    """
    if not x.is_floating_point():
        raise UsageError(f"a quantizer takes a float tensor, got {x.dtype}", hint="convert it with .float()")
    return x.detach().to(torch.float32)


def require_no_nan(x: torch.Tensor) -> None:
    """Refuse NaN, which is no integer.

    Raises:
        RecipeValueError: ``x`` holds NaN.

    Example:
        >>> require_no_nan(torch.tensor([1.0, float("inf")]))
    """
    if bool(torch.isnan(x).any()):
        raise RecipeValueError("NaN cannot be quantized")
