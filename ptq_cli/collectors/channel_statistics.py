"""What is kept of each channel of one tensor: a commutative monoid under ``merge``, as the tensor's own."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import SIGN, BitHistogram, Counts, add_up, thinned_keys
from ptq_cli.collectors.channel_kernels import CHANNEL_BITS
from ptq_cli.collectors.host_kernels import MANTISSA_BITS

MOST_CHANNELS = 1 << 14  # Their tables take 400 MB at the most.
KEY_BITS = np.int64(MANTISSA_BITS + 9)
Ranges = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ChannelHistograms:
    """The histograms of all channels, one behind the other.

    Attributes:
        sizes: how many bins each channel has.
        keys, counts: as in ``BitHistogram``, with 9 bits.

    Shapes: sizes: (C,). keys, counts: (all bins,).
    """

    sizes: Counts
    keys: npt.NDArray[np.uint32]
    counts: Counts

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def channels(self) -> Counts:
        """The channel of each bin."""
        return np.repeat(np.arange(self.sizes.size), self.sizes)

    def each(self) -> list[BitHistogram]:
        """The histogram of each channel."""
        ends = np.cumsum(self.sizes)
        return [
            BitHistogram(self.keys[end - size : end], self.counts[end - size : end], CHANNEL_BITS)
            for size, end in zip(self.sizes, ends, strict=True)
        ]

    def merge(self, other: "ChannelHistograms") -> "ChannelHistograms":
        """The histograms of both sets of values, of the same number of channels."""
        channels = np.concatenate([self.channels, other.channels])
        keys = np.concatenate([self.keys, other.keys])
        return thin_channels(channels, keys, np.concatenate([self.counts, other.counts]), self.sizes.size)


@dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """Statistics of the finite values of each index along an axis.

    Attributes:
        axis: which; below 0 only where no tensor was seen that would have told its rank.
        count: how many values.
        zeros: how many of them were 0; only counted with histograms, otherwise 0.
        minimum, maximum: smallest and largest value; +inf and -inf of a channel without any.
        histograms: of each channel, or None if none were kept.

    Shapes: count, zeros, minimum, maximum: (C,).
    Edge case: Before a tensor was seen it is not known how many channels there are: then there are none.
    """

    axis: int
    count: Counts
    zeros: Counts
    minimum: Ranges
    maximum: Ranges
    histograms: ChannelHistograms | None = None

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """How many channels there are."""
        return self.count.size

    @property
    def amax(self) -> npt.NDArray[np.float64]:
        """The largest magnitude of each channel; 0 of one without values."""
        largest = np.maximum(-self.minimum.astype(np.float64), self.maximum.astype(np.float64))
        return np.where(self.count > 0, largest, 0.0)

    def merge(self, other: "ChannelStatistics") -> "ChannelStatistics":
        """The statistics of both sets of values: exact, commutative, associative.

        Raises: ValueError: the two were not kept in the same way, or have different numbers of channels.
        """
        if (self.histograms is None) != (other.histograms is None):
            raise ValueError("statistics that were kept differently do not merge")
        if not (self.size and other.size):
            return self if self.size else other
        if self.axis != other.axis:
            raise ValueError(f"the channels of axis {self.axis} and those of axis {other.axis} do not merge")
        # numpy would broadcast one channel to many, and so merge what does not belong together.
        if self.size != other.size:
            raise ValueError(f"axis {self.axis} had {self.size} channels and now has {other.size}")
        return ChannelStatistics(
            axis=self.axis,
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
            histograms=self.histograms.merge(other.histograms)
            if self.histograms and other.histograms
            else None,
        )


def no_channels(axis: int, *, histograms: bool) -> ChannelStatistics:
    """The statistics of no values, the neutral element of merging.

    Example:
        >>> no_channels(1, histograms=True).size
        0
    """
    counts, ranges = np.zeros(0, np.int64), np.zeros(0, np.float32)
    kept = ChannelHistograms(counts, np.zeros(0, np.uint32), counts) if histograms else None
    return ChannelStatistics(
        axis=axis, count=counts, zeros=counts, minimum=ranges, maximum=ranges, histograms=kept
    )


def thin_channels(
    channels: Counts, keys: npt.NDArray[np.uint32], counts: Counts, number: int
) -> ChannelHistograms:
    """The histograms of bins given in any order, each thinned to its channel's largest octave.

    Args:
        channels: which channel each bin belongs to.
        keys: of the bins, which may repeat.
        counts: of the bins.
        number: of channels.

    Shapes: channels, keys, counts: (N,).

    Example:
        >>> one = np.array([127 << 11, 128 << 11, 127 << 11], np.uint32)
        >>> found = thin_channels(np.array([1, 0, 1]), one, np.array([1, 2, 3]), 3)
        >>> found.sizes.tolist(), found.counts.tolist()
        ([1, 1, 0], [2, 4])
    """
    tops = np.zeros(number, np.int64)
    np.maximum.at(tops, channels, (keys & ~SIGN).astype(np.int64) >> MANTISSA_BITS)
    thinned = thinned_keys(keys, tops[channels], CHANNEL_BITS)
    both, summed = add_up((channels << KEY_BITS) | thinned, counts)
    sizes = np.bincount(both >> KEY_BITS, minlength=number).astype(np.int64)
    return ChannelHistograms(sizes, (both & ((1 << KEY_BITS) - 1)).astype(np.uint32), summed)


def _same(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    names = [item.name for item in fields(one)]  # type: ignore[arg-type]
    pairs = ((getattr(one, name), getattr(other, name)) for name in names)
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)
