"""The loops of the mse method, compiled. ``mse`` says what they compute and why."""

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.methods.linear_histogram import Counts, Indices
from ptq_cli.collectors.kernels.compiled import compiled

Floats = npt.NDArray[np.float64]


@compiled
def prefix_sums(counts: Counts, width: float) -> tuple[Floats, Floats, float]:  # pragma: no cover - compiled
    """Return how many values lie below each edge, the sum of their centers, and the sum of all squares.

    Shapes:
        counts: (N,); sums: (N + 1,).
    """
    below, moment, square = np.zeros(counts.size + 1), np.zeros(counts.size + 1), 0.0
    for index in range(counts.size):
        center = (index + 0.5) * width
        below[index + 1] = below[index] + counts[index]
        moment[index + 1] = moment[index] + counts[index] * center
        square += counts[index] * center * center
    return below, moment, square


@compiled
def threshold_sums(
    below: Floats, moment: Floats, width: float, scale: float, sums: Floats
) -> None:  # pragma: no cover - compiled
    """Fill in the running sums of ``G`` over the rounding thresholds ``scale / 2``, ``3 scale / 2``, ….

    Shapes:
        below, moment: (N + 1,). sums: (steps + 1,), of which the first is 0.
    """
    bins, running, bins_a_unit = below.size - 1, 0.0, 1.0 / width
    for step in range(sums.size - 1):
        threshold = (step + 0.5) * scale
        # How many bins have their center below the threshold.
        index = min(int(np.ceil(threshold * bins_a_unit - 0.5)), bins)
        running += threshold * below[index] - moment[index]
        sums[step + 1] = running


@compiled
def side_errors(
    counts: Counts, width: float, scales: Floats, steps: int
) -> Floats:  # pragma: no cover - compiled
    """Return the summed squared error of one side of 0 with levels ``0, scale, …, steps * scale``.

    Shapes:
        counts: (N,). scales: (M,). Result: (M,).
    """
    below, moment, square = prefix_sums(counts, width)
    total, mean, sums = below[-1], moment[-1], np.zeros(steps + 1)
    result = np.empty(scales.size)
    for index in range(scales.size):
        threshold_sums(below, moment, width, scales[index], sums)
        end = steps * scales[index]
        result[index] = square - 2 * end * mean + end * end * total - 2 * scales[index] * sums[steps]
    return result


@compiled
def best_zero_points(
    negative: Counts, positive: Counts, width: float, scales: Floats, steps: int
) -> tuple[Indices, Floats]:  # pragma: no cover - compiled
    """Return for each scale how many of the steps should lie above 0, and the error that this leaves.

    Shapes:
        negative, positive: (N,). scales: (M,). Results: (M,).

    Edge case:
        An empty side gets no step. Of equal errors the fewest steps above 0 win.
    """
    below_n, moment_n, square_n = prefix_sums(negative, width)
    below_p, moment_p, square_p = prefix_sums(positive, width)
    total_n, mean_n, sums_n = below_n[-1], moment_n[-1], np.zeros(steps + 1)
    total_p, mean_p, sums_p = below_p[-1], moment_p[-1], np.zeros(steps + 1)
    first = steps if total_n == 0 else 0
    last = 0 if total_p == 0 else steps
    best, least = np.zeros(scales.size, np.int64), np.full(scales.size, np.inf)
    for index in range(scales.size):
        scale = scales[index]
        if total_n > 0:
            threshold_sums(below_n, moment_n, width, scale, sums_n)
        if total_p > 0:
            threshold_sums(below_p, moment_p, width, scale, sums_p)
        for above in range(first, last + 1):
            high, low = above * scale, (steps - above) * scale
            error = square_p - 2 * high * mean_p + high * high * total_p - 2 * scale * sums_p[above]
            error += square_n - 2 * low * mean_n + low * low * total_n - 2 * scale * sums_n[steps - above]
            if error < least[index]:
                best[index], least[index] = above, error
    return best, least


@compiled
def clip_errors(counts: Counts, width: float, ends: Floats) -> tuple[Floats, Floats]:  # pragma: no cover
    """Return the summed squared error of what lies beyond each end, and how many values do not.

    Shapes:
        counts: (N,). ends: (M,). Results: (M,).
    """
    bins = counts.size
    count, moment, square = np.zeros(bins + 1), np.zeros(bins + 1), np.zeros(bins + 1)
    # Summed from the top, so that a small tail is not the difference of two large sums.
    for index in range(bins - 1, -1, -1):
        center = (index + 0.5) * width
        count[index] = count[index + 1] + counts[index]
        moment[index] = moment[index + 1] + counts[index] * center
        square[index] = square[index + 1] + counts[index] * center * center
    clipped, inside = np.zeros(ends.size), np.zeros(ends.size)
    for place in range(ends.size):
        end = ends[place]
        index = min(int(np.ceil(end / width - 0.5)), bins)
        clipped[place] = square[index] - 2 * end * moment[index] + end * end * count[index]
        inside[place] = count[0] - count[index]
    return clipped, inside


@compiled
def fine_errors(
    counts: Counts, width: float, scales: Floats, steps: int
) -> Floats:  # pragma: no cover - compiled
    """Return what ``side_errors`` does, for more levels than the bins can tell apart.

    Shapes:
        counts: (N,). scales: (M,). Result: (M,).
    """
    clipped, inside = clip_errors(counts, width, scales * steps)
    result: Floats = clipped + inside * scales * scales / 12
    return result


@compiled
def fine_pair(
    negative: Counts, positive: Counts, width: float, ends: tuple[Floats, Floats], steps: int
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Return the pair of ends, one of each side, with the smallest error at many levels.

    Shapes:
        negative, positive: (N,). ends: (L,) and (R,), magnitudes.

    Returns:
        Their indices; of equal errors the last, which has the largest range.
    """
    clipped_n, inside_n = clip_errors(negative, width, ends[0])
    clipped_p, inside_p = clip_errors(positive, width, ends[1])
    best, found = np.inf, (0, 0)
    for left in range(ends[0].size):
        for right in range(ends[1].size):
            scale = (ends[0][left] + ends[1][right]) / steps
            error = clipped_n[left] + clipped_p[right]
            error += (inside_n[left] + inside_p[right]) * scale * scale / 12
            if error <= best:
                best, found = error, (left, right)
    return found
