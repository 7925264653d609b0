"""The histogram collector: all that the max collector keeps, and every value's bin."""

import threading

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import KEY_SHIFT, bins_per_octave, thin
from ptq_cli.collectors.kernels import (
    FLOAT_MANTISSA_BITS,
    LARGE,
    LARGE_PER_PAGE,
    MANTISSA_BITS,
    NO_PAGE,
    PAGES,
    TABLE_BINS,
    TABLE_ZEROS,
    ZERO_SLOTS,
    count_bits,
    count_into_table,
    empty_table,
)
from ptq_cli.collectors.max import MaxCollector, float_bits
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.tensors import Array

EXPONENTS = 256


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
        self._starts = np.full(PAGES, NO_PAGE, np.int32)
        self._shifts = np.zeros(PAGES, np.uint32)
        self._keys = np.zeros(0, np.uint32)
        self._counts = np.zeros(ZERO_SLOTS, np.int64)
        self._pages = 0

    def update(self, array: Array) -> bool:
        """Add an array's values; return False if one of them is NaN or infinite, and then add nothing.

        Shapes:
            array: any.
        """
        bits = float_bits(array)
        if bits.size >= max(LARGE, LARGE_PER_PAGE * self._pages):
            return self._count_by_table(bits)
        if not self._range.update_bits(bits):
            return False
        self._count(bits)
        return True

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""
        base = self._range.statistics()
        histogram = thin(self._keys, self._counts[ZERO_SLOTS:])
        zeros = int(self._counts[:ZERO_SLOTS].sum())
        return TensorStatistics(base.count, zeros, base.minimum, base.maximum, None, histogram)

    def _count(self, bits: npt.NDArray[np.uint32]) -> None:
        done = count_bits(bits, self._starts, self._shifts, self._counts, 0)
        while done < bits.size:
            self._add_page(int(bits[done]) >> FLOAT_MANTISSA_BITS)
            done = count_bits(bits, self._starts, self._shifts, self._counts, done)

    def _count_by_table(self, bits: npt.NDArray[np.uint32]) -> bool:
        table = _table_of_thread()
        low, high = count_into_table(bits, table)
        if not self._range.add_range(low, high, bits.size):
            table.fill(0)
            return False
        tops = self._range.top_exponents()
        page, left = empty_table(table, self._starts, self._shifts, self._counts, tops, bits.size)
        while page != NO_PAGE:
            self._add_page(page)
            page, left = empty_table(table, self._starts, self._shifts, self._counts, tops, left)
        return True

    def _add_page(self, page: int) -> None:
        # As fine as the largest magnitude so far needs; a larger one later needs nothing finer.
        bins = int(bins_per_octave(np.array(page % EXPONENTS), self._top_exponent()))
        shift = FLOAT_MANTISSA_BITS - (bins.bit_length() - 1)
        self._starts[page] = self._counts.size
        self._pages += 1
        self._shifts[page] = shift
        keys = (page << MANTISSA_BITS) + (np.arange(bins) << (shift - KEY_SHIFT))
        self._keys = np.concatenate([self._keys, keys.astype(np.uint32)])
        self._counts = np.concatenate([self._counts, np.zeros(bins, np.int64)])

    def _top_exponent(self) -> int:
        return max(*self._range.top_exponents(), 0)


def compile_kernel() -> None:
    """Compile the counting loops now rather than inside the first batch; later calls cost nothing."""
    warm: npt.NDArray[np.float32] = np.ones(LARGE, np.float32)
    HistogramCollector().update(warm)
    HistogramCollector().update(warm[:1])


_THREAD = threading.local()


def _table_of_thread() -> npt.NDArray[np.uint32]:
    """Return the calling thread's table of all bins, which is zero between uses."""
    if not hasattr(_THREAD, "table"):
        _THREAD.table = np.zeros(TABLE_BINS + TABLE_ZEROS, np.uint32)
    table: npt.NDArray[np.uint32] = _THREAD.table
    return table
