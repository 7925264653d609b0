"""Centers learned from a tensor by k-means++ and Lloyd's iterations.

Values lie on a line: once they are sorted, what belongs to one center is a run of them, and its sums are
differences of running sums. An iteration then costs a few binary searches, whatever the number of values is,
and drawing a first center in proportion to its squared distance is a binary search as well. So sorting is the
only work that grows, and the result is that of plain k-means, deterministic for a generator.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.formats import PerAxis
from ptq_cli.quantizers.grid import require_float

# How a tensor is laid out against its centers: one row for each list of centers.


MAX_CENTERS = 256
"""As many as a uint8 index can tell apart."""


def lay_out(x: torch.Tensor, centers: torch.Tensor, axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor and its centers as rows, on its device, in float32, or float64 if x is.

    Shapes:
        x: any; the rows are (1, x.numel()), or (x.shape[axis], the rest).
        centers: (centers,), or (x.shape[axis], centers); the rows are (rows, centers).

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
    """Refuse a temperature that is not positive, or no normal float32."""
    limits = torch.finfo(torch.float32)
    if not limits.tiny <= temperature <= limits.max:
        raise QuantizerValueError(
            f"temperature must be positive and finite, got {temperature}",
            hint="start with about the distance between centers, and anneal it towards 0",
        )


Doubles = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

ITERATIONS = 300
RESTARTS = 4


@dataclass(frozen=True, eq=False)
class _Line:
    """Sorted values, moved to a mean of 0, with the running sums of them and of their squares."""

    values: Doubles
    sums: Doubles
    squares: Doubles

    def means(self, borders: Positions, empty: Doubles) -> Doubles:
        """Return the mean of each run between borders, and ``empty`` where there is no value."""
        counts = np.diff(borders)
        totals = np.diff(self.sums[borders])
        return np.where(counts > 0, totals / np.maximum(counts, 1), empty)

    def costs(self, borders: Positions, centers: Doubles) -> Doubles:
        """Return the sum of squared distances of each run to its center."""
        return self.costs_between(borders[:-1], borders[1:], centers)

    def costs_between(self, starts: Positions, ends: Positions, centers: Doubles) -> Doubles:
        """Return the same for runs that need not follow one another; rounding cannot make it negative."""
        squares = self.squares[ends] - self.squares[starts]
        sums = self.sums[ends] - self.sums[starts]
        return np.maximum(squares - centers * (2 * sums - centers * (ends - starts)), 0.0)

    def borders(self, centers: Doubles) -> Positions:
        """Return where the runs of ascending centers begin, and the end: half way goes to the lower one."""
        inner = np.searchsorted(self.values, (centers[:-1] + centers[1:]) / 2, side="right")
        return np.concatenate([[0], inner, [self.values.size]])


def learn_centers(
    x: torch.Tensor,
    count: int,
    generator: torch.Generator,
    *,
    axis: int | None = None,
    restarts: int = RESTARTS,
) -> torch.Tensor:
    """Return the centers that k-means finds: a local minimum of the squared distances to the nearest one.

    Args:
        x: the tensor; the centers carry no gradient to it.
        count: how many centers, 1 to 256.
        generator: of the random numbers that k-means++ draws its first centers with; on the CPU.
        axis: learn for each index along it; None for the whole tensor.
        restarts: how many first centers are tried; the best result counts.

    Shapes:
        x: any; the result is ``(count,)``, or ``(x.shape[axis], count)``, float32 on x's device, ascending.

    Edge case:
        Where x has fewer different values than ``count``, they are the centers, and the largest is repeated:
        a repeated center is never the nearest one, for ties go to the lower index.

    Raises:
        QuantizerValueError: count is out of range, restarts is not positive, or x holds NaN or infinities.
        AxisError: the tensor does not have the axis.
        QuantizerShapeError: x has no value to learn from.
        QuantizerTypeError: x is not a float tensor.

    Source:
        Arthur and Vassilvitskii 2007, "k-means++: the advantages of careful seeding"; Lloyd 1982, "Least
        squares quantization in PCM"; Han et al. 2016, "Deep compression", section 3.

    Example:
        >>> x = torch.tensor([0.0, 0.2, 5.0, 5.2, -3.0])
        >>> centers = learn_centers(x, 3, torch.Generator().manual_seed(0))
        >>> [round(center, 4) for center in centers.tolist()]
        [-3.0, 0.1, 5.1]
    """
    require_float(x)
    if not 1 <= count <= MAX_CENTERS:
        raise QuantizerValueError(
            f"{count} centers, expected 1 to {MAX_CENTERS}", hint="16 centers fit into 4 bits"
        )
    if restarts < 1:
        raise QuantizerValueError(f"restarts must be positive, got {restarts}")
    if not x.numel():
        raise QuantizerShapeError("a tensor without values has no centers", hint="leave the layer out")
    if not bool(torch.isfinite(x).all()):
        raise QuantizerValueError("centers cannot be learned from NaN or infinities")
    data = x.detach().to("cpu", torch.float64)
    if axis is None:
        return _learn(data, count, generator, restarts).to(x.device)
    length = PerAxis(axis).scale_shape(tuple(x.shape))[0]
    rows = data.movedim(axis, 0).reshape(length, -1)
    return torch.stack([_learn(row, count, generator, restarts) for row in rows]).to(x.device)


def _learn(data: torch.Tensor, count: int, generator: torch.Generator, restarts: int) -> torch.Tensor:
    ordered = np.sort(data.reshape(-1).numpy())
    distinct = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    if distinct.size <= count:
        centers = np.pad(distinct, (0, count - distinct.size), mode="edge")
        return torch.tensor(centers, dtype=torch.float32)
    # Squares of values far from 0 would drown their differences.
    mean = ordered.mean()
    values = ordered - mean
    line = _Line(values, _running(values), _running(values**2))
    found = [_lloyd(line, _first_centers(line, count, generator)) for _ in range(restarts)]
    # The first of equally good ones.
    best = min(found, key=lambda centers: line.costs(line.borders(centers), centers).sum())
    return torch.tensor(best + mean, dtype=torch.float32)


def _running(values: Doubles) -> Doubles:
    return np.concatenate([[0.0], np.cumsum(values)])


def _first_centers(line: _Line, count: int, generator: torch.Generator) -> Doubles:
    """Draw centers one after the other, each value with a chance in proportion to its squared distance."""
    draws = torch.rand(count, generator=generator, dtype=torch.float64).numpy()
    size = line.values.size
    centers = line.values[[min(int(draws[0] * size), size - 1)]]
    for draw in draws[1:]:
        borders = line.borders(centers)
        costs = line.costs(borders, centers)
        reached = np.cumsum(costs)
        target = draw * reached[-1]
        run = min(int(np.searchsorted(reached, target, side="right")), costs.size - 1)
        rest = target - (reached[run] - costs[run])
        position = _position(line, int(borders[run]), int(borders[run + 1]), centers[run], rest)
        centers = np.sort(np.append(centers, line.values[position]))
    return centers


def _position(line: _Line, start: int, end: int, center: np.float64, target: float) -> int:
    """Return the value of a run at which the running sum of squared distances first exceeds the target."""
    low, high = start, end - 1
    while low < high:
        middle = (low + high) // 2
        bounds = np.array([start]), np.array([middle + 1])
        if line.costs_between(*bounds, np.array([center]))[0] > target:
            high = middle
        else:
            low = middle + 1
    return low


def _lloyd(line: _Line, centers: Doubles) -> Doubles:
    """Move each center to the mean of what is nearest to it, until nothing changes."""
    borders = line.borders(centers)
    for _ in range(ITERATIONS):
        centers = line.means(borders, empty=centers)
        moved = line.borders(centers)
        if np.array_equal(moved, borders):
            break
        borders = moved
    return centers


# Centers in ascending order, and which of them is nearest: one search in a short list for each value.
#
# The nearest center is found without a distance to each: between two neighbors lies one border, and a value
# belongs to the center between whose borders it lies. Time grows with the logarithm of the number of
# centers, and memory not at all. The borders are exact, so that the result is that of real numbers, not of
# rounded differences.


@dataclass(frozen=True, eq=False)
class Midpoints:
    """Midpoints of neighbors, exactly: ``high + twice_low / 2``.

    Shapes:
        all: (rows, centers - 1).
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

    Shapes:
        values, order, first: (rows, centers).
        midpoints, borders: (rows, centers - 1).
    """

    values: torch.Tensor
    order: torch.Tensor
    first: torch.Tensor
    midpoints: Midpoints
    borders: torch.Tensor


def sort_centers(centers: torch.Tensor) -> SortedCenters:
    """Return the centers in ascending order, with the borders between them.

    Shapes:
        centers: (rows, centers), float32 or float64.

    Edge case:
        A value half way between two centers belongs to the one of lower index, whichever side that is. Of
        equal centers the one of the lowest index stands for all.

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
    """Return the index, before sorting, of the center nearest to each value.

    Shapes:
        x: (rows, values), contiguous, in the centers' dtype; the result has the same, as int64.

    Edge case:
        ±inf goes to the outermost center. NaN goes to the last one, for want of a better.

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
