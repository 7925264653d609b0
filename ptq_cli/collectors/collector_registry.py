"""The collectors by the name that ``--method`` takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import (
    MOST_CHANNELS,
    SIGN,
    ChannelStatistics,
    no_channels,
    thin_channels,
)
from ptq_cli.collectors.host_kernels import (
    CHANNEL_BITS,
    CHANNEL_SLOTS,
    MAGNITUDE,
    MANTISSA_BITS,
    NOTHING,
    SLOTS,
    count_arrays,
    count_channels,
    find_ranges,
)
from ptq_cli.collectors.host_kernels import CHANNEL_COARSE_START as COARSE_START
from ptq_cli.collectors.host_kernels import CHANNEL_LINEAR_BINS as LINEAR_BINS
from ptq_cli.collectors.host_kernels import CHANNEL_ZERO_SLOTS as ZERO_SLOTS
from ptq_cli.collectors.max_collector import SLOT_LIMIT as HISTOGRAM_SLOT_LIMIT
from ptq_cli.collectors.max_collector import HistogramCollector, MaxCollector, as_float32
from ptq_cli.collectors.tensor_statistics import NONE, NonFinite, TensorStatistics
from ptq_cli.core.errors import ActivationAxisError
from ptq_cli.core.known_names import require_known
from ptq_cli.core.tensors import Array

# What a collector can do.


class Collector(Protocol):
    """What every collector can do, on the host or on a device."""

    def update(self, array: Any, /) -> bool:
        """Add an array's values; return False, and add nothing, if one of them is NaN or infinite.

        The array is one of numpy, or a tensor on the device that the collector counts on (``counting``). It
        has been read when this returns.
        """

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""


# The channels of one tensor: range of each, and its histogram where the collector keeps histograms.


SLOT_LIMIT = 2**32 - 1


class ChannelCollector:
    """Counts the finite values of each index along an axis; values that are not finite are skipped.

    Args:
        axis: the axis; negative numbers count from the last axis.
        histograms: whether histograms are kept, or only ranges.
        name: name of the tensor, for messages.

    Example:
        >>> collector = ChannelCollector(-1)
        >>> collector.update(np.float32([[1.0, -5.0], [3.0, 2.0]]))
        >>> collector.statistics().maximum.tolist()
        [3.0, 2.0]
    """

    def __init__(self, axis: int, *, histograms: bool = True, name: str = "") -> None:
        self._axis = axis
        self._with_bins = histograms
        self._name = name
        self._settled = no_channels(axis, histograms=histograms)
        self._size = 0
        self._held = 0

    def update(self, array: Array) -> None:
        """Add an array's values.

        Shapes:
            array: any, with the same size along the axis, counted from the first, at each call.

        Edge case:
            An array without values adds nothing, whatever its shape.

        Raises:
            ActivationAxisError: it has no such axis, another number of channels than before, or too many.
        """
        if not array.size:
            return
        values = np.ascontiguousarray(as_float32(array)).view(np.uint32)
        self._require_axis(values.shape)
        self._count(_arranged(values, self._axis))

    def statistics(self) -> ChannelStatistics:
        """Return what was kept so far."""
        return self._settled.merge(self._unsettled()) if self._held else self._settled

    def _require_axis(self, shape: tuple[int, ...]) -> None:
        axis = require_axis(self._axis, shape, self._name)
        size = shape[axis]
        if self._size and (axis, size) != (self._axis, self._size):
            raise ActivationAxisError(
                f"axis {axis} of tensor '{self._name}' had {self._size} channels and now has {size}",
                hint="name an axis with the same length in every batch, or leave this tensor out",
            )
        if size > MOST_CHANNELS:
            raise ActivationAxisError(
                f"axis {axis} of tensor '{self._name}' has {size} channels, the limit is {MOST_CHANNELS}",
                hint="name another axis, or leave this tensor out",
            )
        if not self._size:
            self._axis, self._size = axis, size
            self._begin()

    def _begin(self) -> None:
        self._held = 0
        self._table = np.zeros((self._size if self._with_bins else 0, CHANNEL_SLOTS), np.uint32)
        self._tops = np.zeros(self._size, np.int32)
        self._low, self._high = (np.full(self._size, end, np.int32) for end in NOTHING)
        self._counts = np.zeros(self._size, np.int64)

    def _count(self, values: npt.NDArray[np.uint32]) -> None:
        each = values.shape[0] * values.shape[2]
        if each > SLOT_LIMIT:
            for part in np.array_split(values, 2, axis=0 if values.shape[0] > 1 else 2):
                self._count(part)
            return
        if self._held + each > SLOT_LIMIT:
            self._settled = self.statistics()
            self._begin()
        self._held += each
        count_channels(values, self._table, self._tops, self._low, self._high, self._counts, self._with_bins)

    def _unsettled(self) -> ChannelStatistics:
        seen = self._counts > 0
        low = np.where(seen, _floats(self._low), np.float32(np.inf))
        high = np.where(seen, _floats(self._high), np.float32(-np.inf))
        zeros = np.zeros(self._size, np.int64)
        histograms = None
        if self._with_bins:
            zeros = self._table[:, :ZERO_SLOTS].sum(axis=1, dtype=np.int64)
            channels, slots = np.nonzero(self._table)
            counted = slots >= ZERO_SLOTS
            channels, slots = channels[counted], slots[counted]
            keys = _slot_keys(slots, self._tops[channels].astype(np.int64))
            counts = self._table[channels, slots].astype(np.int64)
            histograms = thin_channels(channels, keys, counts, self._size)
        return ChannelStatistics(
            axis=self._axis,
            count=self._counts.copy(),
            zeros=zeros,
            minimum=low,
            maximum=high,
            histograms=histograms,
        )


def require_axis(axis: int, shape: tuple[int | None, ...], name: str) -> int:
    """Return an axis counted from the first one.

    Raises:
        ActivationAxisError: a tensor of this shape has no such axis, or it is the first, that of the samples.

    Example:
        >>> require_axis(-1, (8, 3, 5), "x")
        2
    """
    rank = len(shape)
    if not -rank <= axis < rank:
        sizes = ", ".join("?" if size is None else str(size) for size in shape)
        raise ActivationAxisError(
            f"tensor '{name}' of shape ({sizes}) has no axis {axis}",
            hint=f"name an axis from 1 to {rank - 1}" if rank > 1 else "leave this tensor out",
        )
    if not axis % rank:
        raise ActivationAxisError(
            f"axis {axis} of tensor '{name}' holds its samples, not its channels",
            hint=f"name an axis from 1 to {rank - 1}" if rank > 1 else "leave this tensor out",
        )
    return axis % rank


def _arranged(values: npt.NDArray[np.uint32], axis: int) -> npt.NDArray[np.uint32]:
    """Return values as (outer, channels, inner, 1); as (1, 1, outer, channels) where channels come last."""
    shape = values.shape
    size, inner = shape[axis], int(np.prod(shape[axis + 1 :], dtype=np.int64))
    if inner == 1:
        return values.reshape(1, 1, -1, size)
    return values.reshape(-1, size, inner, 1)


def _floats(ordered: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Return the floats that ``find_range`` told in integers that order as they do; -0.0 becomes 0.0."""
    bits = np.where(ordered < 0, ordered ^ np.int32(MAGNITUDE), ordered).astype(np.int32)
    return bits.view(np.float32) + np.float32(0)


def _slot_keys(slots: npt.NDArray[np.int64], tops: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the key of each slot's bin, given the largest octave of its channel."""
    index = slots % LINEAR_BINS
    octave = np.frexp(np.maximum(index, 1).astype(np.float64))[1].astype(np.int64) - 1
    mantissa = np.left_shift(index, MANTISSA_BITS - octave) & ((1 << MANTISSA_BITS) - 1)
    linear = np.left_shift(tops + octave - CHANNEL_BITS, MANTISSA_BITS) + mantissa
    coarse = (slots - COARSE_START) >> 1 << 8
    is_linear = slots < COARSE_START
    negative = np.where(is_linear, slots >= LINEAR_BINS, slots & 1).astype(bool)
    keys: npt.NDArray[np.uint32] = np.where(is_linear, linear, coarse).astype(np.uint32)
    keys[negative] |= SIGN
    return keys


def compile_channels() -> None:
    """Compile the counting loops now rather than inside the first batch; later calls cost nothing."""
    for shape in ((1, 1, 2), (1, 1)):
        ChannelCollector(1).update(np.ones(shape, np.float32))


# A collector with what is kept on request only: each channel's statistics, counts of NaN and infinities.


class ExtendedCollector:
    """Passes each array on to another collector, and keeps the additional statistics itself.

    Args:
        collector: of the tensor as a whole.
        channels: of its channels, or None.
        allow_nonfinite: NaN and infinities are counted; everything else is then that of the finite values.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> collector = ExtendedCollector(MaxCollector(), None, allow_nonfinite=True)
        >>> collector.update(np.float32([1.0, np.nan, -np.inf]))
        True
        >>> collector.statistics().high, collector.statistics().nonfinite
        (1.0, NonFinite(nan=1, positive=0, negative=1))
    """

    def __init__(
        self, collector: Collector, channels: ChannelCollector | None, *, allow_nonfinite: bool
    ) -> None:
        self._collector = collector
        self._channels = channels
        self._allow = allow_nonfinite
        self._nonfinite = NONE

    def update(self, array: Array) -> bool:
        """Add an array's values; return False, and add nothing, if one is not finite and that is not allowed.

        Raises:
            ActivationAxisError: the array has no such axis, or not as many channels as before.
        """
        values = as_float32(array)
        if not self._collector.update(values):
            if not self._allow:
                return False
            self._nonfinite = self._nonfinite.merge(count_nonfinite(values))
            self._collector.update(values[np.isfinite(values)])
        if self._channels is not None:
            self._channels.update(values)
        return True

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""
        channels = self._channels.statistics() if self._channels is not None else None
        return replace(self._collector.statistics(), channels=channels, nonfinite=self._nonfinite)


def count_nonfinite(values: npt.NDArray[np.float32]) -> NonFinite:
    """Return how many values are NaN and infinite.

    Shapes:
        values: any.

    Example:
        >>> count_nonfinite(np.float32([np.nan, np.inf, 0.0]))
        NonFinite(nan=1, positive=1, negative=0)
    """
    return NonFinite(
        int(np.count_nonzero(np.isnan(values))),
        int(np.count_nonzero(np.isposinf(values))),
        int(np.count_nonzero(np.isneginf(values))),
    )


COLLECTORS: dict[str, Callable[[], Collector]] = {"histogram": HistogramCollector, "max": MaxCollector}


def make_collector(
    method: str, *, name: str = "", axis: int | None = None, allow_nonfinite: bool = False
) -> Collector:
    """Return a new collector.

    Args:
        method: which statistics it keeps.
        name: of the tensor, for messages.
        axis: also keep statistics of each channel along this axis, or None.
        allow_nonfinite: NaN and infinities are counted rather than refused.

    Raises:
        UnknownNameError: there is no collector with that name.

    Example:
        >>> make_collector("max").statistics().count
        0
    """
    require_known("method", method, COLLECTORS)
    collector = COLLECTORS[method]()
    if axis is None and not allow_nonfinite:
        return collector
    channels = None
    if axis is not None:
        channels = ChannelCollector(axis, histograms=method == "histogram", name=name)
    return ExtendedCollector(collector, channels, allow_nonfinite=allow_nonfinite)


# Collectors whose arrays lie in one piece of memory: one compiled call counts them all.
#
# A small network has many small tensors. Handing each to a kernel of its own takes longer than reading it,
# and meanwhile no other thread may run Python.


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
        large = {name for name, (start, end) in memory.spans.items() if end - start > HISTOGRAM_SLOT_LIMIT}
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
