"""The histogram collector, and how one compiled call counts the arrays of many collectors.

A small network has many small tensors. Handing each to a kernel of its own takes longer than reading it,
and meanwhile no other thread may run Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import (
    COARSE_BINS,
    EMPTY_RANGE,
    LINEAR_BINS,
    MANTISSA_BITS,
    SLOTS,
    SMALLEST_TOP,
    ZERO_START,
    count_arrays,
    count_values,
    find_range,
    find_ranges,
)
from ptq_cli.collectors.max_collector import Collector, MaxCollector, float_bits, is_finite, top_exponent
from ptq_cli.collectors.tensor_statistics import EMPTY, SIGN, BitHistogram, TensorStatistics, thin
from ptq_cli.core.tensors import Array

_SLOT_LIMIT = 2**32 - 1


def _linear_keys() -> npt.NDArray[np.int64]:
    """The key of each linear bin, for the largest octave 0."""
    bins = np.arange(LINEAR_BINS, dtype=np.int64)
    # The inverse of the table's index: which octave below the top one a linear bin lies in.
    octave = np.frexp(np.maximum(bins, 1).astype(np.float64))[1].astype(np.int64) - 1
    mantissa = np.left_shift(bins, MANTISSA_BITS - octave) & ((1 << MANTISSA_BITS) - 1)
    keys: npt.NDArray[np.int64] = np.left_shift(octave - MANTISSA_BITS, MANTISSA_BITS) + mantissa
    return keys


LINEAR_KEYS = _linear_keys()
COARSE_KEYS = np.arange(COARSE_BINS, dtype=np.int64) << 8


class HistogramCollector:
    """Counts every value by its bits.

    The table's bins are those of the largest octave so far. Where a value of a larger one comes, what the
    table holds is settled: it becomes a histogram, which merges with what is counted from then on.

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
        self._table = np.zeros(SLOTS, np.uint32)
        self._top = 0
        self._held = 0
        self._settled, self._zeros = EMPTY, 0

    def update(self, array: Array) -> bool:
        """Add an array's values; return False if one of them is NaN or infinite, and then add nothing.

        Shapes: array: any.
        """
        bits = float_bits(array)
        if bits.size > _SLOT_LIMIT:
            return self._update_in_parts(bits)
        top = self.make_room(bits.size)
        counted = count_values(bits, self._table, top, bits.size, 1) if top else (0, *EMPTY_RANGE)
        return self.add_counted(bits, *counted)

    def make_room(self, count: int) -> int:
        """Get ready to count so many values; return the largest octave that the table has bins for.

        Edge case: 0 as long as there are no bins, before the first values.
        """
        # Slots are uint32, half the memory of int64: they are emptied before one could overflow.
        if self._held + count > _SLOT_LIMIT:
            self._settle()
        return self._top

    def add_counted(self, bits: npt.NDArray[np.uint32], done: int, low: int, high: int) -> bool:
        """Do as ``update`` with values of which the table has some already, as ``count_values`` tells it.

        Shapes: bits: (N,). done: how many are counted. low, high: their range.
        """
        if done < bits.size:
            least, most = find_range(bits[done:].view(np.int32))
            if not is_finite(least, most):
                # Taken back, so that a batch with NaN leaves the table as it was.
                count_values(bits, self._table, max(self._top, SMALLEST_TOP), done, -1)
                return False
            low, high = min(low, least), max(high, most)
            self._held += done
            self._begin(bits[done:], top_exponent(low, high))
        self._held += bits.size
        return self._range.add_range(low, high, bits.size)

    def use_table(self, table: npt.NDArray[np.uint32]) -> None:
        """Count in another table from now on; both must be empty.

        Shapes: table: (12304,).
        """
        self._table = table

    def statistics(self) -> TensorStatistics:
        """Statistics of all updates so far."""
        histogram, zeros = self._all()
        return replace(self._range.statistics(), zeros=zeros, histogram=histogram)

    def _update_in_parts(self, bits: npt.NDArray[np.uint32]) -> bool:
        if not is_finite(*find_range(bits.view(np.int32))):
            return False
        return all(self.update(part.view(np.float32)) for part in np.array_split(bits, 2))

    def _begin(self, bits: npt.NDArray[np.uint32], top: int) -> None:
        """Count finite values of which some lie in a larger octave than all before, if there were any."""
        self._settle()
        self._top = max(top, SMALLEST_TOP)
        count_values(bits, self._table, self._top, bits.size, 1)

    def _settle(self) -> None:
        self._settled, self._zeros = self._all()
        self._table.fill(0)
        self._held = 0

    def _all(self) -> tuple[BitHistogram, int]:
        histogram, zeros = read_table(self._table.astype(np.int64), self._top)
        return self._settled.merge(histogram), self._zeros + zeros


def read_table(counts: npt.NDArray[np.int64], top: int) -> tuple[BitHistogram, int]:
    """The histogram that a table holds, and its zeros.

    Shapes: counts: (12304,). top: the biased exponent of the table's largest octave.

    Example:
        >>> read_table(np.zeros(SLOTS, np.int64), 127)[1]
        0
    """
    linear = LINEAR_KEYS + (top << MANTISSA_BITS)
    keys = np.concatenate([linear, linear | int(SIGN), COARSE_KEYS])
    found = counts[:ZERO_START] > 0
    histogram = thin(keys[found].astype(np.uint32), counts[:ZERO_START][found])
    return histogram, int(counts[ZERO_START:].sum())


def compile_kernel() -> None:
    """Compile the counting loops now rather than inside the first batch; later calls cost nothing."""
    HistogramCollector().update(np.ones(1, np.float32))


_Span = tuple[int, int]  # Where an array begins and ends, in its memory's elements.


@dataclass(frozen=True)
class SharedMemory:
    """Memory in which arrays of float32 lie side by side.

    Attributes:
        words: the values, as their bits.
        spans: the arrays, by name.
    """

    words: npt.NDArray[np.uint32]
    spans: Mapping[str, _Span]


class MaxCollectors:
    """Several max collectors, by name."""

    def __init__(self, collectors: Mapping[str, MaxCollector]) -> None:
        self._collectors = collectors

    def update(self, memory: SharedMemory) -> list[str]:
        """Let collectors have their arrays; return the names of those not all finite, which add nothing."""
        spans = _pairs(list(memory.spans.values()))
        ranges = np.empty((len(spans), 2), np.int32)
        find_ranges(memory.words.view(np.int32), spans, ranges)
        found = zip(memory.spans, ranges.tolist(), (spans[:, 1] - spans[:, 0]).tolist(), strict=True)
        return [
            name
            for name, (low, high), count in found
            if not self._collectors[name].add_range(low, high, count)
        ]


class HistogramCollectors:
    """Several histogram collectors that have counted nothing yet; their tables then lie side by side."""

    def __init__(self, collectors: Mapping[str, HistogramCollector]) -> None:
        self._collectors = collectors
        self._tables = np.zeros((len(collectors), SLOTS), np.uint32)
        self._rows = {name: row for row, name in enumerate(collectors)}
        for collector, table in zip(collectors.values(), self._tables, strict=True):
            collector.use_table(table)

    def update(self, memory: SharedMemory) -> list[str]:
        """Let collectors have their arrays; return the names of those not all finite, which add nothing."""
        large = {name for name, (start, end) in memory.spans.items() if end - start > _SLOT_LIMIT}
        bad = [name for name in memory.spans if name in large and not self._update_alone(name, memory)]
        spans = {name: span for name, span in memory.spans.items() if name not in large}
        tops = [
            (self._rows[n], self._collectors[n].make_room(end - start)) for n, (start, end) in spans.items()
        ]
        counted = np.empty((len(spans), 3), np.int64)
        count_arrays(memory.words, _pairs(list(spans.values())), self._tables, _pairs(tops), counted)
        for (name, (start, end)), found in zip(spans.items(), counted.tolist(), strict=True):
            if not self._collectors[name].add_counted(memory.words[start:end], *found):
                bad.append(name)
        return bad

    def _update_alone(self, name: str, memory: SharedMemory) -> bool:
        start, end = memory.spans[name]
        return self._collectors[name].update(memory.words[start:end].view(np.float32))


Together = MaxCollectors | HistogramCollectors


def together(collectors: Mapping[str, Collector]) -> Together | None:
    """Collectors as one, if all of them are max or all of them histogram collectors; else None.

    Example:
        >>> together({"x": MaxCollector(), "y": HistogramCollector()}) is None
        True
    """
    ranges = {name: one for name, one in collectors.items() if isinstance(one, MaxCollector)}
    if len(ranges) == len(collectors):
        return MaxCollectors(ranges)
    histograms = {name: one for name, one in collectors.items() if isinstance(one, HistogramCollector)}
    return HistogramCollectors(histograms) if len(histograms) == len(collectors) else None


def _pairs(pairs: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    return np.array(pairs, np.int64).reshape(-1, 2)
