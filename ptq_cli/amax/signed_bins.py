"""A tensor's histogram as bins on the number line, for what is counted or drawn over it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.statistics.bit_histogram import SIGN, BitHistogram
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SignedBins:
    """The bins of a histogram on the number line, in order.

    Attributes:
        low, high: each bin's ends; the outermost ones end at the smallest and the largest value.
        counts: how many values each holds.

    Shapes:
        low, high, counts: (B,).
    """

    low: Values
    high: Values
    counts: npt.NDArray[np.int64]


def signed_bins(statistics: TensorStatistics, histogram: BitHistogram) -> SignedBins:
    """Return a tensor's bins on the number line.

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
    """Return how many values lie between edges, with each bin's spread evenly over it.

    A drawing's counts, not a decision's: they need not be whole.

    Args:
        bins: of the tensor.
        edges: ascending; the last interval holds its upper end.

    Shapes:
        edges: (N + 1,); the result has (N,).

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
