"""The histogram collector: all that the max collector keeps, and every value's bin."""

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import thin
from ptq_cli.collectors.kernels import MANTISSA_BITS, NO_ROW, PAGE_BINS, PAGES, ZERO_SLOTS, count_bits
from ptq_cli.collectors.max import MaxCollector, as_float32
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.tensors import Array


class HistogramCollector:
    """Counts every value by its bits.

    Example:
        >>> collector = HistogramCollector()
        >>> collector.update(np.array([0.0, 1.0, 1.0, -2.0], np.float32))
        True
        >>> statistics = collector.statistics()
        >>> statistics.zeros, statistics.histogram.counts.tolist()
        (1, [2, 1])
    """

    def __init__(self) -> None:
        self._range = MaxCollector()
        self._rows = np.full(PAGES, NO_ROW, np.int32)
        self._counts = np.zeros(PAGE_BINS, np.int64)

    def update(self, array: Array) -> bool:
        """Add an array's values; return False if one of them is NaN or infinite, and then add nothing.

        Shapes:
            array: any.
        """
        values = as_float32(array)
        if not self._range.update(values):
            return False
        bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
        done = count_bits(bits, self._rows, self._counts, 0)
        while done < bits.size:
            self._add_page(int(bits[done]) >> 23)
            done = count_bits(bits, self._rows, self._counts, done)
        return True

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""
        base = self._range.statistics()
        pages = np.flatnonzero(self._rows != NO_ROW)
        table = self._counts.reshape(-1, PAGE_BINS)[self._rows[pages]]
        keys = (pages[:, None] << MANTISSA_BITS) + np.arange(PAGE_BINS)
        histogram = thin(keys.ravel().astype(np.uint32), table.ravel())
        zeros = int(self._counts[:ZERO_SLOTS].sum())
        return TensorStatistics(base.count, zeros, base.minimum, base.maximum, None, histogram)

    def _add_page(self, page: int) -> None:
        # Row 0 belongs to the zeros; a new page is the last row.
        self._rows[page] = self._counts.size // PAGE_BINS
        self._counts = np.concatenate([self._counts, np.zeros(PAGE_BINS, np.int64)])


def compile_kernel() -> None:
    """Compile the counting loop now rather than inside the first batch; later calls cost nothing."""
    warm: npt.NDArray[np.float32] = np.ones(1, np.float32)
    HistogramCollector().update(warm)
