"""The channels of one tensor: the range of each, and its histogram where the collector keeps histograms."""

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import SIGN
from ptq_cli.collectors.channel_kernels import CHANNEL_BITS, CHANNEL_SLOTS, count_channels
from ptq_cli.collectors.channel_kernels import CHANNEL_COARSE_START as COARSE_START
from ptq_cli.collectors.channel_kernels import CHANNEL_LINEAR_BINS as LINEAR_BINS
from ptq_cli.collectors.channel_kernels import CHANNEL_ZERO_SLOTS as ZERO_SLOTS
from ptq_cli.collectors.channel_statistics import MOST_CHANNELS, ChannelStatistics, no_channels, thin_channels
from ptq_cli.collectors.host_kernels import EMPTY_RANGE, MAGNITUDE, MANTISSA_BITS
from ptq_cli.collectors.max_collector import as_float32
from ptq_cli.core.errors import ActivationAxisError
from ptq_cli.core.tensors import Array

_SLOT_LIMIT = 2**32 - 1


class ChannelCollector:
    """Counts the finite values of each index along an axis, which may be negative, and skips all others.

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

        Shapes: array: any, with the same size along the axis, counted from the first, at each call.
        Edge case: An array without values adds nothing, whatever its shape.
        """
        if not array.size:
            return
        values = np.ascontiguousarray(as_float32(array)).view(np.uint32)
        self._require_axis(values.shape)
        self._count(_arranged(values, self._axis))

    def statistics(self) -> ChannelStatistics:
        """Statistics of all updates so far."""
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
        self._low, self._high = (np.full(self._size, end, np.int32) for end in EMPTY_RANGE)
        self._counts = np.zeros(self._size, np.int64)

    def _count(self, values: npt.NDArray[np.uint32]) -> None:
        each = values.shape[0] * values.shape[2]
        if each > _SLOT_LIMIT:
            for part in np.array_split(values, 2, axis=0 if values.shape[0] > 1 else 2):
                self._count(part)
            return
        if self._held + each > _SLOT_LIMIT:
            self._settled = self.statistics()
            self._begin()
        self._held += each
        count_channels(values, self._table, (self._tops, self._low, self._high, self._counts))

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
    """An axis counted from the first one.

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
    """Values as (outer, channels, inner, 1); as (1, 1, outer, channels) where channels come last."""
    shape = values.shape
    size, inner = shape[axis], int(np.prod(shape[axis + 1 :], dtype=np.int64))
    if inner == 1:
        return values.reshape(1, 1, -1, size)
    return values.reshape(-1, size, inner, 1)


def _floats(ordered: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """The floats that ``find_range`` told in integers that order as they do; -0.0 becomes 0.0."""
    bits = np.where(ordered < 0, ordered ^ np.int32(MAGNITUDE), ordered).astype(np.int32)
    return bits.view(np.float32) + np.float32(0)


def _slot_keys(slots: npt.NDArray[np.int64], tops: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """The key of each slot's bin, given the largest octave of its channel."""
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
