"""Collectors whose arrays lie in one piece of memory: one compiled call counts them all.

A small network has many small tensors. Handing each to a kernel of its own takes longer than reading it, and
meanwhile no other thread may run Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.collector import Collector
from ptq_cli.collectors.histogram_collector import SLOT_LIMIT, HistogramCollector
from ptq_cli.collectors.kernels.host_kernels import SLOTS, count_arrays, find_ranges
from ptq_cli.collectors.max_collector import MaxCollector

Span = tuple[int, int]
"""Where an array begins and ends, in its memory's elements."""


@dataclass(frozen=True)
class SharedMemory:
    """Memory in which arrays of float32 lie side by side.

    Attributes:
        words: the values, as their bits.
        spans: the arrays, by name.
    """

    words: npt.NDArray[np.uint32]
    spans: Mapping[str, Span]


class Together(Protocol):
    """Several collectors."""

    def update(self, memory: SharedMemory) -> list[str]:
        """Let collectors have their arrays; return the names of those that are not all finite.

        To those nothing is added.

        Args:
            memory: has an array for each of the collectors, or for some, and none for others.
        """


class MaxCollectors:
    """Several max collectors.

    Args:
        collectors: by name.

    Example:
        >>> collector = MaxCollector()
        >>> memory = SharedMemory(np.float32([1, 2, 9]).view(np.uint32), {"x": (0, 2)})
        >>> MaxCollectors({"x": collector}).update(memory)
        []
        >>> collector.statistics().high
        2.0
    """

    def __init__(self, collectors: Mapping[str, MaxCollector]) -> None:
        self._collectors = collectors

    def update(self, memory: SharedMemory) -> list[str]:
        """Let collectors have their arrays; see ``Together``."""
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
    """Several histogram collectors that have counted nothing yet; from now on their tables lie side by side.

    Args:
        collectors: by name.

    Example:
        >>> collector = HistogramCollector()
        >>> memory = SharedMemory(np.float32([1, 2, 2, 9]).view(np.uint32), {"x": (0, 3)})
        >>> HistogramCollectors({"x": collector}).update(memory)
        []
        >>> collector.statistics().histogram.counts.tolist()
        [1, 2]
    """

    def __init__(self, collectors: Mapping[str, HistogramCollector]) -> None:
        self._collectors = collectors
        self._tables = np.zeros((len(collectors), SLOTS), np.uint32)
        self._rows = {name: row for row, name in enumerate(collectors)}
        for collector, table in zip(collectors.values(), self._tables, strict=True):
            collector.use_table(table)

    def update(self, memory: SharedMemory) -> list[str]:
        """Let collectors have their arrays; see ``Together``."""
        large = {name for name, (start, end) in memory.spans.items() if end - start > SLOT_LIMIT}
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


def together(collectors: Mapping[str, Collector]) -> Together | None:
    """Return collectors as one, if all of them are max or all of them histogram collectors; else None.

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
