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
from ptq_cli.amax.methods.linear_histogram import STRIDE, LinearHistogram, side_candidates
from ptq_cli.amax.methods.mse_kernels import best_zero_points, fine_errors, fine_pair, side_errors
from ptq_cli.core.numbers.formats import IntegerFormat

MSE_START_BIN = 1
"""NVIDIA's is 128, where the entropy method needs as many bins as levels. The error of a range is defined
from the first bin on, and of a few bits for a tensor with outliers the best is below a sixteenth."""

BINS_PER_LEVEL = 8
"""Fewer bins to a level, and where their centers fall between two levels is chance."""

Errors = npt.NDArray[np.float64]


def mse_amax(
    histogram: LinearHistogram, format: IntegerFormat, *, start_bin: int = MSE_START_BIN, stride: int = STRIDE
) -> Choice:
    """Return the symmetric range with the smallest expected error; its scale is ``amax / qmax``.

    Candidates are the centers of every ``stride``-th bin from ``start_bin`` on, as NVIDIA's, and the largest
    magnitude itself, so that the error is never above that of ``max``. With more levels than bins can tell
    apart they are the bins' upper edges: half a bin is then many steps.

    Args:
        histogram: of the tensor.
        format: signed, narrow or not, or unsigned, which clips negative values to 0.
        start_bin: the first candidate's bin.
        stride: from bin to bin.

    Units:
        As the tensor's values.

    Edge case:
        Of equal errors the smallest range wins. Values that all lie in one bin leave one candidate, their
        largest magnitude. No value, or only zeros: 0.

    Source:
        NVIDIA pytorch-quantization, HistogramCalibrator.compute_amax("mse"); Bennett 1948, "Spectra of
        quantized signals".

    Example:
        >>> from ptq_cli.amax.methods.linear_histogram import histogram_of_values
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
    """Return the range with a zero point that has the smallest expected error.

    Every zero point is tried with every scale: no search in turns, and no local minimum. Candidates for the
    range's width are the centers of ``bins`` equal parts of the whole width, and the whole width. The ends
    are whole numbers of steps, so the range holds 0 exactly.

    Args:
        histogram: of the tensor.
        format: the integers.
        start_bin: the first candidate's part.
        stride: from part to part.

    Edge case:
        As ``mse_amax``. A tensor without negative values gets none: its zero point is the format's minimum.

    Source:
        The error is that of ONNX QuantizeLinear and DequantizeLinear.

    Example:
        >>> from ptq_cli.amax.methods.linear_histogram import histogram_of_values
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
    """Return the summed squared error of symmetric ranges, with scale ``amax / qmax`` and zero point 0.

    Shapes:
        amax: (M,), above 0; the result has the same.

    Units:
        Squared units of the values. Zeros have no error.

    Example:
        >>> from ptq_cli.amax.methods.linear_histogram import histogram_of_values
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
    """Tell whether a number of bins shows where values lie between the steps that share them."""
    return steps * BINS_PER_LEVEL <= bins


def _fine_range(histogram: LinearHistogram, steps: int, start_bin: int, stride: int) -> Choice:
    """Return the best range of many levels: the ends lie on bins' edges, and all pairs of them are tried."""
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
