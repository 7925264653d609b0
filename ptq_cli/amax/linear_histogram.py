"""The linear view that the entropy and mse methods are defined on: equally wide bins over [0, max |x|].

It is derived when a method decides, from the bit-keyed statistics or from the values themselves; nothing of
it is kept. Its bins depend on the tensor's final range only, so that how the values were batched cannot
change it. (NVIDIA's HistogramCalibrator takes the width from the first batch and appends bins.)
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.tensor_statistics import SIGN, BitHistogram, Counts, TensorStatistics

Edges = npt.NDArray[np.float64]
BinIndices = npt.NDArray[np.int64]

# Bins of NVIDIA's HistogramCalibrator; the statistics keep 11 bits of mantissa for this number.
BINS = 2048

START_BIN = 128
STRIDE = 1  # NVIDIA's: the first range that a search tries keeps 128 bins, and each following one a bin more.


@dataclass(frozen=True, kw_only=True)
class LinearHistogram:
    """Counts of a tensor's non-zero values in equally wide bins on both sides of 0.

    Attributes:
        negative, positive: counts by magnitude; a bin holds its lower edge, the last one both.
        top: the last bin's upper edge.
        low, high: the smallest and the largest value, and 0 if that is smaller or larger.
        zeros: how many values were exactly 0; no bin holds them.

    Shapes: negative, positive: (N,).
    Units: top, low, high: as the tensor's values.
    """

    negative: Counts
    positive: Counts
    top: float
    low: float
    high: float
    zeros: int

    @property
    def bins(self) -> int:
        """How many bins each side has."""
        return self.positive.size

    @property
    def width(self) -> float:
        """Width of a bin."""
        return self.top / self.bins

    @property
    def magnitudes(self) -> Counts:
        """Counts of both signs together, without the zeros."""
        return self.negative + self.positive

    @property
    def full_amax(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)


def linear_view(statistics: TensorStatistics, bins: int = BINS) -> LinearHistogram:
    """The linear histogram of a tensor's bit-keyed statistics.

    A bit-keyed bin lies on the linear bins that it overlaps. Its values are taken to be spread evenly over
    it, and the number of values below each linear edge, counted from 0 outwards for each sign, is rounded to
    a whole one, halves up. So counts stay whole, their sum stays exact, a single value lies in a single bin,
    and the same statistics always give the same view.

    Shapes: negative, positive: (bins,).
    Edge case: No value, or only zeros: no counts, and a top of 0.

    Raises: ValueError: the statistics have no histogram.

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> collector = HistogramCollector()
        >>> collector.update(np.array([0.0, -1.0, 3.0, 4.0], np.float32))
        True
        >>> view = linear_view(collector.statistics(), bins=4)
        >>> view.negative.tolist(), view.positive.tolist(), view.top, view.zeros
        ([0, 1, 0, 0], [0, 0, 0, 2], 4.0, 1)
    """
    histogram = statistics.histogram
    if histogram is None:
        raise ValueError("a linear view needs a histogram, but only ranges were kept")
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    top = max(-low, high)
    edges: Edges = np.arange(bins + 1, dtype=np.float64) * (top / bins)
    is_negative = (histogram.keys & SIGN) != 0
    negative = _count_side(histogram, is_negative, -low, edges)
    positive = _count_side(histogram, ~is_negative, high, edges)
    return LinearHistogram(
        negative=negative, positive=positive, top=top, low=low, high=high, zeros=statistics.zeros
    )


def _count_side(
    histogram: BitHistogram, selected: npt.NDArray[np.bool_], largest: float, edges: Edges
) -> Counts:
    counts = histogram.counts[selected]
    if not counts.size:
        return np.zeros(edges.size - 1, np.int64)
    # Sorted by key, and keys of one sign are ordered by magnitude. No value lies above the largest one, which
    # may be its bin's lower edge: a bin needs some width to be interpolated over.
    lower = histogram.lower_edges()[selected].astype(np.float64)
    upper = np.maximum(np.minimum(histogram.upper_edges()[selected], largest), np.nextafter(lower, np.inf))
    below = np.concatenate([[0], np.cumsum(counts)])
    ends = np.column_stack([lower, upper]).ravel()
    counted = np.column_stack([below[:-1], below[1:]]).ravel()
    at_edges = np.floor(np.interp(edges, ends, counted) + 0.5).astype(np.int64)
    at_edges[-1] = below[-1]
    spread: Counts = np.diff(at_edges)
    return spread


def histogram_of_values(values: npt.ArrayLike, bins: int = BINS, top: float | None = None) -> LinearHistogram:
    """The linear histogram of values, exactly.

    Shapes: values: any.

    Args:
        values: finite.
        bins: how many.
        top: the last edge, at least the largest magnitude; that magnitude itself if there is none.

    Example:
        >>> view = histogram_of_values([0.0, -1.0, 3.0, 4.0], bins=4)
        >>> view.negative.tolist(), view.positive.tolist(), view.low
        ([0, 1, 0, 0], [0, 0, 0, 2], -1.0)
    """
    array = np.asarray(values, np.float64).ravel()
    low, high = float(np.min(array, initial=0.0)), float(np.max(array, initial=0.0))
    last = max(-low, high) if top is None else top
    nonzero = array[array != 0]
    # The quotient first: it is at most 1, where the product of a huge value and the bins would be infinite.
    index = np.minimum(np.abs(nonzero) / (last or 1.0) * bins, bins - 1).astype(np.int64)
    negative = np.bincount(index[nonzero < 0], minlength=bins)
    positive = np.bincount(index[nonzero > 0], minlength=bins)
    return LinearHistogram(
        negative=negative, positive=positive, top=last, low=low, high=high, zeros=array.size - nonzero.size
    )


def side_candidates(counts: Counts, start_bin: int, stride: int) -> BinIndices:
    """How many bins each candidate keeps of one side; the whole side is always the last one.

    Shapes: counts: (N,).
    Edge case: A side of fewer than ``start_bin`` bins is kept whole. An empty one has one candidate, 0.

    Example:
        >>> side_candidates(np.array([5, 1, 1, 0, 1, 0]), start_bin=2, stride=2).tolist()
        [2, 4, 5]
    """
    (occupied,) = np.nonzero(counts)
    bins = int(occupied[-1]) + 1 if occupied.size else 0
    return np.append(np.arange(start_bin, bins, stride), bins)
