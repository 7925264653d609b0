"""Centers learned from a tensor by k-means++ and Lloyd's iterations.

Values lie on a line: once they are sorted, what belongs to one center is a run of them, and its sums are
differences of running sums. An iteration then costs a few binary searches, whatever the number of values is,
and drawing a first center in proportion to its squared distance is a binary search as well. So sorting is the
only work that grows, and the result is that of plain k-means, deterministic for a generator.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.formats import PerAxis
from ptq_cli.quantizers.grid import require_float
from ptq_cli.quantizers.sorted_centers import MAX_CENTERS

Doubles = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]
_ITERATIONS = 300
RESTARTS = 4


@dataclass(frozen=True, eq=False)
class _Line:
    """Sorted values, moved to a mean of 0, with the running sums of them and of their squares."""

    values: Doubles
    sums: Doubles
    squares: Doubles

    def means(self, borders: Positions, empty: Doubles) -> Doubles:
        """The mean of each run between borders, and ``empty`` where there is no value."""
        counts = np.diff(borders)
        totals = np.diff(self.sums[borders])
        return np.where(counts > 0, totals / np.maximum(counts, 1), empty)

    def costs(self, borders: Positions, centers: Doubles) -> Doubles:
        """The sum of squared distances of each run to its center."""
        return self.costs_between(borders[:-1], borders[1:], centers)

    def costs_between(self, starts: Positions, ends: Positions, centers: Doubles) -> Doubles:
        """The same for runs that need not follow one another; rounding cannot make it negative."""
        squares = self.squares[ends] - self.squares[starts]
        sums = self.sums[ends] - self.sums[starts]
        return np.maximum(squares - centers * (2 * sums - centers * (ends - starts)), 0.0)

    def borders(self, centers: Doubles) -> Positions:
        """Where the runs of ascending centers begin, and the end: half way goes to the lower one."""
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
    """The centers that k-means finds: a local minimum of the squared distances to the nearest one.

    Args:
        x: the tensor; the centers carry no gradient to it.
        count: how many centers, 1 to 256.
        generator: of the random numbers that k-means++ draws its first centers with; on the CPU.
        axis: learn for each index along it; None for the whole tensor.
        restarts: how many first centers are tried; the best result counts.

    Shapes: x: any; the result is ``(count,)``, or ``(x.shape[axis], count)``, float32 on x's device,
        ascending.
    Edge case: Where x has fewer different values than ``count``, they are the centers, and the largest is
        repeated: a repeated center is never the nearest one, for ties go to the lower index.

    Raises: QuantizerValueError: count is out of range, restarts is not positive, or x holds NaN or
        infinities. AxisError: the tensor does not have the axis. QuantizerShapeError: x has no value to learn
        from. QuantizerTypeError: x is not a float tensor.

    Source: Arthur and Vassilvitskii 2007, "k-means++: the advantages of careful seeding"; Lloyd 1982, "Least
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
    """The value of a run at which the running sum of squared distances first exceeds the target."""
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
    for _ in range(_ITERATIONS):
        centers = line.means(borders, empty=centers)
        moved = line.borders(centers)
        if np.array_equal(moved, borders):
            break
        borders = moved
    return centers
