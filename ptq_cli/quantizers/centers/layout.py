"""How a tensor is laid out against its centers: one row for each list of centers."""

import math

import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.numbers.granularity import PerAxis
from ptq_cli.quantizers.grid import require_float

MAX_CENTERS = 256
"""As many as a uint8 index can tell apart."""


def lay_out(x: torch.Tensor, centers: torch.Tensor, axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor and its centers as rows; the centers are in float32, or float64 if x is.

    Shapes:
        x: any; the rows are (1, x.numel()), or (x.shape[axis], the rest).
        centers: (centers,), or (x.shape[axis], centers); the rows are (rows, centers).

    Raises:
        QuantizerValueError: there is no center or more than 256, or one is not finite.
        AxisError: the axis is none of the tensor's.
        QuantizerShapeError: the centers' shape does not fit.
        QuantizerTypeError: one of the tensors is not a float tensor.

    Example:
        >>> rows, centers = lay_out(torch.zeros(2, 3), torch.zeros(3, 4), axis=1)
        >>> rows.shape, centers.shape
        (torch.Size([3, 2]), torch.Size([3, 4]))
    """
    require_float(x)
    require_centers(centers)
    lead = () if axis is None else PerAxis(axis).scale_shape(tuple(x.shape))
    if tuple(centers.shape[:-1]) != lead:
        raise QuantizerShapeError(
            f"centers have shape {tuple(centers.shape)}, expected {(*lead, 'centers')}",
            hint="pass one list of centers with axis=None, or one for each index along axis",
        )
    count = lead[0] if lead else 1
    first = x if axis is None else x.movedim(axis, 0)
    rows = first.reshape(count, math.prod(first.shape[len(lead) :]))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return rows, centers.reshape(count, centers.shape[-1]).to(wide)


def lay_back(rows: torch.Tensor, shape: torch.Size, axis: int | None) -> torch.Tensor:
    """Return rows in the shape of the tensor that they were made from.

    Example:
        >>> x = torch.arange(6.0).reshape(2, 3)
        >>> rows, _ = lay_out(x, torch.zeros(3, 4), axis=1)
        >>> torch.equal(lay_back(rows, x.shape, axis=1), x)
        True
    """
    if axis is None:
        return rows.reshape(shape)
    first = axis % len(shape)
    rest = [size for index, size in enumerate(shape) if index != first]
    return rows.reshape(shape[first], *rest).movedim(0, first).contiguous()


def require_centers(centers: torch.Tensor) -> None:
    """Refuse centers that are none: too few, too many, or not finite. Equal centers are allowed.

    Values are not looked at in a compiled graph, which cannot raise.

    Raises:
        QuantizerValueError: there is no center or more than 256, one is not finite, or they lie so far apart
            that float32 cannot tell how far.
        QuantizerShapeError: they do not have rank 1 or 2.
        QuantizerTypeError: they are not floats.

    Example:
        >>> require_centers(torch.tensor([0.0, 1.0]))
    """
    require_float(centers)
    if centers.ndim not in (1, 2):
        raise QuantizerShapeError(
            f"centers have shape {tuple(centers.shape)}, expected (centers,) or (n, centers)"
        )
    if not 1 <= centers.shape[-1] <= MAX_CENTERS:
        raise QuantizerValueError(
            f"{centers.shape[-1]} centers, expected 1 to {MAX_CENTERS}",
            hint="16 fit into 4 bits, 256 into 8",
        )
    if torch.compiler.is_compiling() or not centers.numel():
        return
    values = centers.detach()
    low, high = torch.aminmax(values.to(torch.promote_types(values.dtype, torch.float32)), dim=-1)
    # NaN and infinities make the difference not finite, and so do centers too far apart.
    if not bool(torch.isfinite(high - low).all()):
        raise QuantizerValueError(
            "centers must be finite, and so must their distances",
            hint="check the values they were learned from; a high learning rate can make them diverge",
        )


def require_temperature(temperature: float) -> None:
    """Refuse a temperature that is not positive, or no normal float32.

    Raises:
        QuantizerValueError: it is one of these.

    Example:
        >>> require_temperature(0.05)
    """
    limits = torch.finfo(torch.float32)
    if not limits.tiny <= temperature <= limits.max:
        raise QuantizerValueError(
            f"temperature must be positive and finite, got {temperature}",
            hint="start with about the distance between centers, and anneal it towards 0",
        )
