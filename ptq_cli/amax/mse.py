"""amax by mse: the range whose quantization error, expected over the histogram, is the smallest.

The values of a bin are taken to lie at its center. On one side of 0, with scale ``s`` and levels
``0, s, …, n * s``, their summed squared error is, with ``a = n * s``,

    sum((x - a)^2) - 2 * s * sum over k < n of G((k + 1/2) * s),    G(t) = sum over x < t of (t - x)

because each rounding threshold ``(k + 1/2) * s`` that a value lies below takes one step off its distance to
``a``. With prefix sums of counts, counts * x and counts * x^2 a candidate costs its levels, not its bins; and
since a grid with a zero point is two such sides with ``n_negative + n_positive`` steps, running sums give the
error of every zero point at a scale for the price of one (``mse_range``).

With more levels than bins can tell apart, the error within the range is that of values spread evenly over a
step, ``s^2 / 12`` each (Bennett 1948).
"""

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice, symmetric_choice
from ptq_cli.amax.linear_histogram import STRIDE, BinIndices, LinearHistogram, side_candidates
from ptq_cli.collectors.tensor_statistics import Counts
from ptq_cli.core.compiled import compiled
from ptq_cli.core.formats import IntegerFormat

_Floats = npt.NDArray[np.float64]


@compiled
def prefix_sums(
    counts: Counts, width: float
) -> tuple[_Floats, _Floats, float]:  # pragma: no cover - compiled
    """How many values lie below each edge, the sum of their centers, and the sum of all squares.

    Shapes: counts: (N,); sums: (N + 1,).
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
    below: _Floats, moment: _Floats, width: float, scale: float, sums: _Floats
) -> None:  # pragma: no cover - compiled
    """Fill in the running sums of ``G`` over the rounding thresholds ``scale / 2``, ``3 scale / 2``, ….

    Shapes: below, moment: (N + 1,). sums: (steps + 1,), of which the first is 0.
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
    counts: Counts, width: float, scales: _Floats, steps: int
) -> _Floats:  # pragma: no cover - compiled
    """The summed squared error of one side of 0 with levels ``0, scale, …, steps * scale``.

    Shapes: counts: (N,). scales: (M,). Result: (M,).
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
    negative: Counts, positive: Counts, width: float, scales: _Floats, steps: int
) -> tuple[BinIndices, _Floats]:  # pragma: no cover - compiled
    """Steps above 0 with the smallest error, and that error, for each scale.

    Shapes: negative, positive: (N,). scales: (M,). Results: (M,).
    Edge case: An empty side gets no step. Of equal errors the fewest steps above 0 win.
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
def clip_errors(counts: Counts, width: float, ends: _Floats) -> tuple[_Floats, _Floats]:  # pragma: no cover
    """The summed squared error of what lies beyond each end, and how many values do not.

    Shapes: counts: (N,). ends: (M,). Results: (M,).
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
    counts: Counts, width: float, scales: _Floats, steps: int
) -> _Floats:  # pragma: no cover - compiled
    """As ``side_errors``, for more levels than the bins can tell apart.

    Shapes: counts: (N,). scales: (M,). Result: (M,).
    """
    clipped, inside = clip_errors(counts, width, scales * steps)
    result: _Floats = clipped + inside * scales * scales / 12
    return result


@compiled
def fine_pair(
    negative: Counts, positive: Counts, width: float, ends: tuple[_Floats, _Floats], steps: int
) -> tuple[int, int]:  # pragma: no cover - compiled
    """The pair of ends, one of each side, with the smallest error at many levels.

    Shapes: negative, positive: (N,). ends: (L,) and (R,), magnitudes.

    Returns: Their indices; of equal errors the last, which has the largest range.
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


# NVIDIA's is 128, where the entropy method needs as many bins as levels. The error of a range is defined from
# the first bin on, and of a few bits for a tensor with outliers the best is below a sixteenth.
MSE_START_BIN = 1

BINS_PER_LEVEL = 8  # Fewer bins to a level, and where their centers fall between two levels is chance.
Errors = npt.NDArray[np.float64]


def mse_amax(
    histogram: LinearHistogram, format: IntegerFormat, *, start_bin: int = MSE_START_BIN, stride: int = STRIDE
) -> Choice:
    """The symmetric range with the smallest expected error; its scale is ``amax / qmax``.

    Candidates are the centers of every ``stride``-th bin from ``start_bin`` on, as NVIDIA's, and the largest
    magnitude itself, so that the error is never above that of ``max``. With more levels than bins can tell
    apart they are the bins' upper edges: half a bin is then many steps.

    Args:
        histogram: of the tensor.
        format: signed, narrow or not, or unsigned, which clips negative values to 0.
        start_bin: the first candidate's bin.
        stride: from bin to bin.

    Units: As the tensor's values.
    Edge case: Of equal errors the smallest range wins. Values that all lie in one bin leave one candidate,
        their largest magnitude. No value, or only zeros: 0.
    Source: NVIDIA pytorch-quantization, HistogramCalibrator.compute_amax("mse"); Bennett 1948, "Spectra of
        quantized signals".

    Example:
        >>> from ptq_cli.amax.linear_histogram import histogram_of_values
        >>> values = np.concatenate([np.linspace(-1, 1, 8001), [1.25]])
        >>> round(mse_amax(histogram_of_values(values), IntegerFormat(4, signed=True)).amax, 2)
        0.93
    """
    full = histogram.full_amax
    if np.count_nonzero(histogram.magnitudes) <= 1:
        return symmetric_choice(full, 1)
    if _resolves(histogram.bins, format.qmax):
        amax = _candidates(histogram.width, histogram.bins, start_bin, stride, full)
    else:
        kept = side_candidates(histogram.magnitudes, start_bin, stride)
        amax = np.minimum(kept * histogram.width, full)
    errors = symmetric_errors(histogram, amax, format)
    return symmetric_choice(float(amax[np.argmin(errors)]), amax.size)


def mse_range(
    histogram: LinearHistogram, format: IntegerFormat, *, start_bin: int = MSE_START_BIN, stride: int = STRIDE
) -> Choice:
    """The range with a zero point that has the smallest expected error.

    Every zero point is tried with every scale: no search in turns, and no local minimum. Candidates for the
    range's width are the centers of ``bins`` equal parts of the whole width, and the whole width. The ends
    are whole numbers of steps, so the range holds 0 exactly.

    Args:
        histogram: of the tensor.
        format: the integers.
        start_bin: the first candidate's part.
        stride: from part to part.

    Edge case: As ``mse_amax``. A tensor without negative values gets none: its zero point is the format's
        minimum.
    Source: The error is that of ONNX QuantizeLinear and DequantizeLinear.

    Example:
        >>> from ptq_cli.amax.linear_histogram import histogram_of_values
        >>> values = np.concatenate([np.linspace(-0.5, 1, 8001), [1.25]])
        >>> choice = mse_range(histogram_of_values(values), IntegerFormat(4, signed=False))
        >>> round(choice.low, 2), round(choice.high, 2)
        (-0.47, 0.95)
    """
    low, high = histogram.low, histogram.high
    if np.count_nonzero(histogram.negative) + np.count_nonzero(histogram.positive) <= 1:
        return Choice(low, high, 1)
    steps = format.qmax - format.qmin
    if not _resolves((high - low) / histogram.width, steps):
        return _fine_range(histogram, steps, start_bin, stride)
    widths = _candidates((high - low) / histogram.bins, histogram.bins, start_bin, stride, high - low)
    scales = widths / steps
    positive, errors = best_zero_points(
        histogram.negative, histogram.positive, histogram.width, scales, steps
    )
    best = int(np.argmin(errors))
    above = int(positive[best])
    return Choice(float(-(steps - above) * scales[best]), float(above * scales[best]), widths.size)


def symmetric_errors(histogram: LinearHistogram, amax: Errors, format: IntegerFormat) -> Errors:
    """The summed squared error of symmetric ranges, with scale ``amax / qmax`` and zero point 0.

    Shapes: amax: (M,), above 0; the result has the same.
    Units: Squared units of the values. Zeros have no error.

    Example:
        >>> from ptq_cli.amax.linear_histogram import histogram_of_values
        >>> view = histogram_of_values([0.75, -3.75], bins=8, top=4.0)  # both are centers of bins
        >>> symmetric_errors(view, np.array([3.75]), IntegerFormat(2, signed=True)).tolist()
        [0.5625]
    """
    scales, below = amax / format.qmax, -format.qmin
    side = side_errors if _resolves(histogram.bins, format.qmax) else fine_errors
    # What is symmetric about 0 is one side with the magnitudes.
    if below == format.qmax:
        errors: Errors = side(histogram.magnitudes, histogram.width, scales, format.qmax)
    else:
        errors = side(histogram.positive, histogram.width, scales, format.qmax)
        errors += side(histogram.negative, histogram.width, scales, below)
    return errors


def _resolves(bins: float, steps: int) -> bool:
    """Whether a number of bins shows where values lie between the steps that share them."""
    return steps * BINS_PER_LEVEL <= bins


def _fine_range(histogram: LinearHistogram, steps: int, start_bin: int, stride: int) -> Choice:
    """The best range of many levels: the ends lie on bins' edges, and all pairs of them are tried."""
    kept = [side_candidates(counts, start_bin, stride) for counts in (histogram.negative, histogram.positive)]
    ends = (
        np.minimum(kept[0] * histogram.width, -histogram.low),
        np.minimum(kept[1] * histogram.width, histogram.high),
    )
    left, right = fine_pair(histogram.negative, histogram.positive, histogram.width, ends, steps)
    return Choice(float(-ends[0][left]), float(ends[1][right]), ends[0].size * ends[1].size)


def _candidates(part: float, bins: int, start_bin: int, stride: int, full: float) -> Errors:
    centers = (np.arange(start_bin, bins, stride) + 0.5) * part
    return np.append(centers, full)
