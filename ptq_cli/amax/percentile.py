"""amax by percentile: the range that holds all but the rarest values."""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.tensor_statistics import SIGN, TensorStatistics
from ptq_cli.core.errors import MissingStatisticError


def max_amax(statistics: TensorStatistics) -> float:
    """The largest magnitude.

    Units: As the tensor's values.
    Edge case: No value, or only zeros: 0.
    Source: NVIDIA pytorch-quantization, MaxCalibrator.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> import numpy as np
        >>> collector = MaxCollector()
        >>> collector.update(np.array([-3.0, 2.0], np.float32))
        True
        >>> max_amax(collector.statistics())
        3.0
    """
    return max(abs(statistics.low), abs(statistics.high))


def percentile_amax(statistics: TensorStatistics, percentile: float) -> float:
    """The smallest bin edge that ``percentile`` percent of the magnitudes do not exceed.

    The edge is the bin's upper one, and never above the largest magnitude, so that 100 is exactly ``max``.
    (NVIDIA's HistogramCalibrator returns the lower edge, so that its 100 lies below the maximum.)

    Units: As the tensor's values; the edge lies within 2^-11 of the largest magnitude of the exact
        percentile.
    Edge case: Zeros count. If they alone are ``percentile`` percent, the range would be empty; it is then
        that of the smallest bin above 0. No value, or only zeros: 0.

    Raises: MissingStatisticError: no histogram was kept.

    Source: NVIDIA pytorch-quantization, HistogramCalibrator.compute_amax("percentile").

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> collector = HistogramCollector()
        >>> collector.update(np.arange(1, 101, dtype=np.float32))
        True
        >>> percentile_amax(collector.statistics(), 90.0)
        90.03125
        >>> percentile_amax(collector.statistics(), 100.0)
        100.0
    """
    histogram = statistics.histogram
    if histogram is None:
        raise missing_histogram("percentile")
    largest = max_amax(statistics)
    if not histogram.counts.size:
        return largest
    # Fold the signs: bins of equal magnitude lie together, and their counts add up.
    magnitudes, inverse = np.unique(histogram.keys & ~SIGN, return_inverse=True)
    counts = np.zeros(magnitudes.size, np.int64)
    np.add.at(counts, inverse, histogram.counts)
    edges = np.zeros(magnitudes.size)
    edges[inverse] = histogram.upper_edges()
    wanted = _rank(percentile, statistics.count) - statistics.zeros
    index = int(np.searchsorted(np.cumsum(counts), max(wanted, 1)))
    return min(float(edges[min(index, edges.size - 1)]), largest)


def percentile_of_values(values: npt.ArrayLike, percentile: float) -> float:
    """The smallest magnitude that ``percentile`` percent of the values' magnitudes do not exceed.

    Shapes: values: any.
    Units: As the values, and one of them: with the values at hand there is no bin to round up to.
    Edge case: As ``percentile_amax``: where zeros alone are ``percentile`` percent, the smallest magnitude
        above 0.

    Example:
        >>> percentile_of_values([0.0, -1.0, 2.0, 4.0], 75.0)
        2.0
    """
    magnitudes = np.abs(np.asarray(values)).ravel()
    zeros = magnitudes.size - int(np.count_nonzero(magnitudes))
    if zeros == magnitudes.size:
        return 0.0
    rank = max(_rank(percentile, magnitudes.size), zeros + 1)
    return float(np.partition(magnitudes, rank - 1)[rank - 1])


def missing_histogram(method: str) -> MissingStatisticError:
    """The error of a method that needs histograms where there are none."""
    return MissingStatisticError(
        f"the {method} method needs histograms, and this calibration kept only ranges",
        hint="calibrate with --method histogram, or export with --amax max",
    )


def _rank(percentile: float, count: int) -> int:
    # In fractions: 99.9 % of 1e9 values in float64 is 999000000.0000001, and would round up to one more.
    return math.ceil(Fraction(str(float(percentile))) * count / 100)
