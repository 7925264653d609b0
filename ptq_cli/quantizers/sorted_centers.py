"""Centers in ascending order, and which of them is nearest to each value of a tensor.

The nearest center is found without a distance to each: between two neighbors lies one border, and a value
belongs to the center between whose borders it lies. Time grows with the logarithm of the number of
centers, and memory not at all. The borders are exact, so that the result is that of real numbers, not of
rounded differences.
"""

import math
from dataclasses import dataclass

import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.formats import PerAxis
from ptq_cli.quantizers.grid import require_float

MAX_CENTERS = 256  # A uint8 index tells no more apart.


def lay_out(x: torch.Tensor, centers: torch.Tensor, axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor and its centers as rows, on its device, in float32, or float64 if x is.

    Shapes: x: any; the rows are (1, x.numel()), or (x.shape[axis], the rest). centers: (centers,), or
        (x.shape[axis], centers); the rows are (rows, centers).

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
    return rows, centers.reshape(count, centers.shape[-1]).to(x.device, wide)


def lay_back(rows: torch.Tensor, shape: torch.Size, axis: int | None) -> torch.Tensor:
    """Rows in the shape of the tensor that they were made from.

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
    """Refuse centers that cannot be used: too few, too many, or not finite. Equal centers are allowed.

    Values are not looked at in a compiled graph, which cannot raise.

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
            f"{centers.shape[-1]} centers, expected 1 to {MAX_CENTERS}", hint="16 fit into 4 bits, 256 into 8"
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
    """Refuse a temperature that is not positive, or no normal float32."""
    limits = torch.finfo(torch.float32)
    if not limits.tiny <= temperature <= limits.max:
        raise QuantizerValueError(
            f"temperature must be positive and finite, got {temperature}",
            hint="start with about the distance between centers, and anneal it towards 0",
        )


# Centers in ascending order, and which of them is nearest: one search in a short list for each value.
#
# The nearest center is found without a distance to each: between two neighbors lies one border, and a value
# belongs to the center between whose borders it lies. Time grows with the logarithm of the number of
# centers, and memory not at all. The borders are exact, so that the result is that of real numbers, not of
# rounded differences.
@dataclass(frozen=True, eq=False)
class Midpoints:
    """Midpoints of neighbors, exactly: ``high + twice_low / 2``.

    Shapes: all: (rows, centers - 1).
    """

    high: torch.Tensor
    twice_low: torch.Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class SortedCenters:
    """Centers in ascending order, for one row or more.

    Attributes:
        values: ascending.
        order: where each stood before sorting.
        first: position of the first center that is equal to it.
        midpoints: between neighbors.
        borders: the largest float that belongs to the left one of two neighbors.

    Shapes: values, order, first: (rows, centers). midpoints, borders: (rows, centers - 1).
    """

    values: torch.Tensor
    order: torch.Tensor
    first: torch.Tensor
    midpoints: Midpoints
    borders: torch.Tensor


def sort_centers(centers: torch.Tensor) -> SortedCenters:
    """The centers in ascending order, with the borders between them.

    Shapes: centers: (rows, centers), float32 or float64.
    Edge case: A value half way between two centers belongs to the one of lower index, whichever side that is.
        Of equal centers the one of the lowest index stands for all.

    Example:
        >>> found = sort_centers(torch.tensor([[2.0, 0.0, 1.0]]))
        >>> found.values.tolist(), found.order.tolist(), found.borders.tolist()
        ([[0.0, 1.0, 2.0]], [[1, 2, 0]], [[0.5, 1.4999998807907104]])
    """
    # Adding 0 makes 0 of -0, which a radix sort would take for a smaller number.
    values, order = torch.sort(centers + 0.0, dim=-1, stable=True)
    # A stable sort keeps equal centers in the order of their indices: the first has the lowest.
    first = torch.searchsorted(values, values)
    owner = order.gather(-1, first)
    midpoints = _midpoints(values[:, :-1], values[:, 1:])
    right_wins = owner[:, 1:] < owner[:, :-1]
    # The largest float not above the midpoint; below it where the tie goes to the right.
    beyond = (midpoints.twice_low < 0) | ((midpoints.twice_low == 0) & right_wins)
    down = torch.nextafter(midpoints.high, torch.full_like(midpoints.high, -torch.inf))
    return SortedCenters(
        values=values,
        order=order,
        first=first,
        midpoints=midpoints,
        borders=torch.where(beyond, down, midpoints.high),
    )


def nearest(x: torch.Tensor, centers: SortedCenters) -> torch.Tensor:
    """The index, before sorting, of the center nearest to each value.

    Shapes: x: (rows, values), contiguous, in the centers' dtype; the result has the same, as int64.
    Edge case: ±inf goes to the outermost center. NaN goes to the last one, for want of a better.

    Example:
        >>> nearest(torch.tensor([[0.4, 0.5, 9.0]]), sort_centers(torch.tensor([[1.0, 0.0]]))).tolist()
        [[1, 0, 0]]
    """
    position = torch.searchsorted(centers.borders.contiguous(), x)
    return centers.order.gather(-1, centers.first).gather(-1, position)


def _midpoints(left: torch.Tensor, right: torch.Tensor) -> Midpoints:
    # Halves first where the sum would overflow. Halving is exact for numbers as large as that.
    huge = torch.maximum(left.abs(), right.abs()) > torch.finfo(left.dtype).max / 4
    left, right = torch.where(huge, left / 2, left), torch.where(huge, right / 2, right)
    total = left + right
    # Knuth's two-sum: what the addition rounded away, exactly.
    shown = total - left
    lost = (left - (total - shown)) + (right - shown)
    high = torch.where(huge, total, total / 2)
    # Halving the smallest subnormal numbers rounds; there the sum itself was exact.
    return Midpoints(high, torch.where(huge, lost * 2, lost + (total - high * 2)))
