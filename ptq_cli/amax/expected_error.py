"""What a tensor's parameters cost it, computed from its histogram: no model is run.

The values of a bin are taken to be spread evenly over it. In steps of the scale, ``u = x / scale``, a
value becomes the integer ``n(u) = clip(round(u), lowest, highest)``, and the squared error has the
antiderivative ``n / 12 + (u - n)^3 / 3``: rounding and clipping in one closed form, so that no grid of
samples is needed.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ptq_cli.amax.choice import Choice
from ptq_cli.collectors.bit_histogram import SIGN, BitHistogram
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SignedBins:
    """The bins of a histogram on the number line, in order.

    Attributes:
        low, high: each bin's ends; the outermost ones end at the smallest and the largest value.
        counts: how many values each holds.

    Shapes: low, high, counts: (B,).
    """

    low: Values
    high: Values
    counts: npt.NDArray[np.int64]


def signed_bins(statistics: TensorStatistics, histogram: BitHistogram) -> SignedBins:
    """A tensor's bins on the number line.

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> collector = HistogramCollector()
        >>> collector.update(np.array([-2.0, 0.5, 1.0], np.float32))
        True
        >>> bins = signed_bins(collector.statistics(), collector.statistics().histogram)
        >>> bins.low.tolist(), bins.high.tolist(), bins.counts.tolist()
        ([-2.0, 0.5, 1.0], [-2.0, 0.5009765625, 1.0], [1, 1, 1])
    """
    near, far = histogram.lower_edges().astype(np.float64), histogram.upper_edges()
    negative = (histogram.keys & SIGN) != 0
    # No value lies beyond the extremes, which often share a bin with nothing: 6.0 behind a ReLU6.
    largest = np.where(negative, -statistics.low, statistics.high)
    smallest = np.where(negative, -statistics.high, statistics.low)
    near, far = np.maximum(near, smallest), np.minimum(far, largest)
    low, high = np.where(negative, -far, near), np.where(negative, -near, far)
    order = np.argsort(low, kind="stable")
    return SignedBins(low[order], high[order], histogram.counts[order])


def counts_between(bins: SignedBins, edges: Values) -> Values:
    """How many values lie between edges, with each bin's spread evenly over it.

    A drawing's counts, not a decision's: they need not be whole.

    Args:
        bins: of the tensor.
        edges: ascending; the last interval holds its upper end.

    Shapes: edges: (N + 1,); the result has (N,).

    Example:
        >>> bins = SignedBins(np.array([0.0, 3.0]), np.array([2.0, 3.0]), np.array([8, 1]))
        >>> counts_between(bins, np.array([0.0, 1.0, 2.0, 3.0])).tolist()
        [4.0, 4.0, 1.0]
    """
    wide = bins.high > bins.low
    ends = np.column_stack([bins.low[wide], bins.high[wide]]).ravel()
    below = np.concatenate([[0], np.cumsum(bins.counts[wide])])
    counted = np.column_stack([below[:-1], below[1:]]).ravel().astype(np.float64)
    found = np.diff(np.interp(edges, ends, counted)) if ends.size else np.zeros(edges.size - 1)
    # A bin of one value, such as the 6.0 behind a ReLU6, has no width to be spread over.
    index = np.clip(np.searchsorted(edges, bins.low[~wide], side="right") - 1, 0, edges.size - 2)
    np.add.at(found, index, bins.counts[~wide])
    spread: Values = found
    return spread


@dataclass(frozen=True)
class ExpectedError:
    """The error of quantizing and dequantizing a tensor's values.

    Units: mse, clipping: squared units of the values; sqnr_db: decibels.
    """

    mse: Annotated[float, "Mean squared error, of all values, zeros too."]
    clipping: Annotated[float, "The part of it that values beyond the last levels have."]
    sqnr_db: Annotated[float, "Power of the values over that of the error; inf where there is no error."]


def count_clipped(statistics: TensorStatistics, histogram: BitHistogram, choice: Choice) -> tuple[int, int]:
    """Least and most values that are beyond a range.

    The first counts the bins that begin at an end of the range or beyond it; the second also the bin that an
    end cuts, of whose values a histogram cannot say on which side they are. Where the ends are bins' edges,
    as those of percentiles are, the two are equal.

    Edge case: The smallest and the largest value themselves do not count as beyond a range that ends there.

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> collector = HistogramCollector()
        >>> collector.update(np.array([0.0, 0.5, 1.0, 1.0, 4.0], np.float32))
        True
        >>> statistics = collector.statistics()
        >>> count_clipped(statistics, statistics.histogram, Choice(0.0, 4.0))
        (0, 0)
        >>> count_clipped(statistics, statistics.histogram, Choice(0.0, 1.0001))
        (1, 3)
    """
    bins = signed_bins(statistics, histogram)
    above = (bins.low >= choice.high) & (statistics.high > choice.high)
    below = (bins.high <= choice.low) & (statistics.low < choice.low)
    cut = ((bins.low < choice.high) & (choice.high < bins.high)) | (
        (bins.low < choice.low) & (choice.low < bins.high)
    )
    surely = int(bins.counts[above | below].sum())
    return surely, int(bins.counts[above | below | cut].sum())


def expected_error(
    statistics: TensorStatistics, histogram: BitHistogram, parameters: QuantParameters
) -> ExpectedError:
    """The error that a tensor's values are expected to have with one scale and zero point.

    Shapes: parameters: per tensor.
    Edge case: Zeros are exact. A tensor without values, or of zeros only, has no error and an infinite SQNR.
    Source: ONNX QuantizeLinear and DequantizeLinear; within a bin, Bennett 1948, "Spectra of quantized
        signals".

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = HistogramCollector()
        >>> collector.update(np.linspace(0.0, 255.0, 100_001, dtype=np.float32))
        True
        >>> statistics = collector.statistics()
        >>> full = parameters_from_range(0.0, 255.0, UINT8)
        >>> round(expected_error(statistics, statistics.histogram, full).mse, 4)  # 1 / 12
        0.0833
    """
    return error_of_bins(signed_bins(statistics, histogram), statistics.count, parameters)


def error_of_bins(bins: SignedBins, values: int, parameters: QuantParameters) -> ExpectedError:
    """The same of a tensor with so many ``values``, zeros too, whose bins are known already."""
    scale, zero_point = float(parameters.scale), int(parameters.zero_point)
    lowest, highest = parameters.integers.qmin - zero_point, parameters.integers.qmax - zero_point
    low, high = bins.low / scale, bins.high / scale
    total = _sum(_mean_error(low, high, lowest, highest), bins.counts) * scale**2
    beyond = _mean_beyond(low - highest, high - highest) + _mean_beyond(lowest - high, lowest - low)
    power = power_of_bins(bins)
    count = max(values, 1)
    sqnr = 10 * math.log10(power / total) if total > 0 and power > 0 else math.inf
    return ExpectedError(total / count, _sum(beyond, bins.counts) * scale**2 / count, sqnr)


def power_of_bins(bins: SignedBins) -> float:
    """The sum of the squared values."""
    return _sum((bins.low**2 + bins.low * bins.high + bins.high**2) / 3, bins.counts)


def _sum(means: Values, counts: npt.NDArray[np.int64]) -> float:
    return float(np.sum(means * counts))


def _mean_error(low: Values, high: Values, lowest: int, highest: int) -> Values:
    """The mean squared error, in steps, of values spread evenly over each [low, high]."""
    first, last = (np.clip(np.rint(end), lowest, highest) for end in (low, high))
    left, right = low - first, high - last
    # Where one level serves the whole bin; the antiderivative's difference would lose a narrow bin's digits.
    within = (left**2 + left * right + right**2) / 3
    width = np.where(high > low, high - low, 1.0)
    across = ((last - first) / 12 + (right**3 - left**3) / 3) / width
    mean: Values = np.where(first == last, within, across)
    return mean


def _mean_beyond(start: Values, end: Values) -> Values:
    """The mean of ``max(t, 0)^2`` for ``t`` spread evenly over each [start, end]."""
    near, far = np.maximum(start, 0.0), np.maximum(end, 0.0)
    share = np.where(end > start, (far - near) / np.where(end > start, end - start, 1.0), 1.0)
    mean: Values = share * (near**2 + near * far + far**2) / 3
    return mean
