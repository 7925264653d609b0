"""Statistics of many tensors as flat arrays, and a list that says where each tensor's part lies.

A file from outside is hostile: what is read back is checked so far that every amax method can rely on it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import INFINITE, SIGN, BitHistogram, thin
from ptq_cli.collectors.channel_statistics import (
    MOST_CHANNELS,
    ChannelHistograms,
    ChannelStatistics,
    thin_channels,
)
from ptq_cli.collectors.tensor_statistics import NonFinite, Range, TensorStatistics

FlatArrays = dict[str, npt.NDArray[Any]]
_Entry = dict[str, Any]
_ARRAYS: dict[str, np.dtype[Any]] = {
    "keys": np.dtype("<u4"),
    "counts": np.dtype("<i8"),
    "minimum": np.dtype("<f4"),
    "maximum": np.dtype("<f4"),
    "channel_count": np.dtype("<i8"),
    "channel_zeros": np.dtype("<i8"),
    "channel_minimum": np.dtype("<f4"),
    "channel_maximum": np.dtype("<f4"),
    "channel_bins": np.dtype("<i8"),
    "channel_keys": np.dtype("<u4"),
    "channel_counts": np.dtype("<i8"),
}
COUNT_LIMIT = 2**63
MOST_AXES = 64  # numpy has no more.


def flatten(statistics: Mapping[str, TensorStatistics]) -> tuple[FlatArrays, list[_Entry]]:
    """The arrays and the entries, in the order of the names.

    Shapes: keys, counts: (all bins,). minimum, maximum: (tensors,). channel_count and others: (all
        channels,); channel_keys, channel_counts: (all channels' bins,).
    """
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [np.zeros(0, dtype)] for name, dtype in _ARRAYS.items()}
    entries = []
    for name, item in sorted(statistics.items()):
        found, where = _taken_apart(item)
        for key, array in found.items():
            parts[key].append(array)
        entries.append({"name": name, "count": item.count, "zeros": item.zeros} | where)
    return {name: np.concatenate(items).astype(_ARRAYS[name]) for name, items in parts.items()}, entries


def _taken_apart(item: TensorStatistics) -> tuple[FlatArrays, _Entry]:
    arrays: FlatArrays = {"minimum": item.minimum.reshape(1), "maximum": item.maximum.reshape(1)}
    if item.histogram is not None:
        arrays |= {"keys": item.histogram.keys, "counts": item.histogram.counts}
    channels, histograms = item.channels, item.channels.histograms if item.channels is not None else None
    if channels is not None:
        arrays |= {
            "channel_count": channels.count,
            "channel_zeros": channels.zeros,
            "channel_minimum": channels.minimum,
            "channel_maximum": channels.maximum,
        }
    if histograms is not None:
        arrays |= {
            "channel_bins": histograms.sizes,
            "channel_keys": histograms.keys,
            "channel_counts": histograms.counts,
        }
    return arrays, {
        "bins": item.histogram.keys.size if item.histogram is not None else None,
        "channels": channels.size if channels is not None else None,
        "axis": channels.axis if channels is not None else None,
        "nan": item.nonfinite.nan,
        "positive_infinities": item.nonfinite.positive,
        "negative_infinities": item.nonfinite.negative,
    }


def unflatten(entries: Any, arrays: FlatArrays) -> dict[str, TensorStatistics]:
    """The statistics that ``flatten`` took apart; a file may hold anything as ``entries``."""
    for name, dtype in _ARRAYS.items():
        if name not in arrays or arrays[name].dtype != dtype:
            raise ValueError(f"the array '{name}' is missing, or is not {dtype}")
    if len(arrays) != len(_ARRAYS) or not isinstance(entries, list):
        raise ValueError("its parts are not those of a calibration")
    rest = {name: _Parts(array) for name, array in arrays.items()}
    statistics: dict[str, TensorStatistics] = {}
    for entry in entries:
        key = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(key, str) or key in statistics:
            raise ValueError("a tensor has no name, or one that another has too")
        try:
            statistics[key] = _read_entry(entry, rest)
        except ValueError as error:
            raise ValueError(f"tensor '{key}': {error}") from error
    if any(part.left for part in rest.values()):
        raise ValueError("some of its values belong to no tensor")
    return statistics


class _Parts:
    """An array that is handed out from its start on."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self._at = 0

    @property
    def left(self) -> int:
        return self._array.size - self._at

    def take(self, size: int) -> npt.NDArray[Any]:
        if size > self.left:
            raise ValueError(f"expected {size} values, {self.left} are left")
        self._at += size
        return self._array[self._at - size : self._at]


def _read_entry(entry: _Entry, rest: Mapping[str, _Parts]) -> TensorStatistics:
    count, zeros = _whole(entry, "count"), _whole(entry, "zeros")
    nonfinite = NonFinite(
        _whole(entry, "nan"), _whole(entry, "positive_infinities"), _whole(entry, "negative_infinities")
    )
    low, high = (rest[name].take(1) for name in ("minimum", "maximum"))
    _check_ranges(low, high, np.array([count]))
    histogram = None
    if entry.get("bins") is not None:
        bins = _whole(entry, "bins")
        histogram = BitHistogram(rest["keys"].take(bins), rest["counts"].take(bins))
        _check_histogram(histogram, count - zeros)
        if not histogram.fits(float(low[0]), float(high[0])):
            raise ValueError("its bins are not those of its range")
    found = TensorStatistics(
        count=count,
        zeros=zeros,
        minimum=low.reshape(()),
        maximum=high.reshape(()),
        channels=None,
        histogram=histogram,
        nonfinite=nonfinite,
    )
    if entry.get("channels") is None and entry.get("axis") is None:
        return found
    channels = _read_channels(entry, rest, histograms=histogram is not None)
    _check_channels(channels, found)
    return replace(found, channels=channels)


def _read_channels(entry: _Entry, rest: Mapping[str, _Parts], *, histograms: bool) -> ChannelStatistics:
    size = _whole(entry, "channels")
    axis = _whole(entry, "axis", lowest=-MOST_AXES)
    if size > MOST_CHANNELS or axis >= MOST_AXES or (axis < 1 and size):
        raise ValueError(f"it has {size} channels of axis {axis}")
    names = ("channel_count", "channel_zeros", "channel_minimum", "channel_maximum")
    count, zeros, low, high = (rest[name].take(size) for name in names)
    if not histograms:
        return ChannelStatistics(axis=axis, count=count, zeros=zeros, minimum=low, maximum=high)
    bins = rest["channel_bins"].take(size)
    # In Python's integers, because sums of hostile numbers overflow.
    sizes = bins.tolist()
    if any(number < 0 for number in sizes):
        raise ValueError("a channel has a negative number of bins")
    keys, counts = (rest[name].take(sum(sizes)) for name in ("channel_keys", "channel_counts"))
    return ChannelStatistics(
        axis=axis,
        count=count,
        zeros=zeros,
        minimum=low,
        maximum=high,
        histograms=ChannelHistograms(bins, keys, counts),
    )


def _whole(entry: _Entry, key: str, lowest: int = 0) -> int:
    value = entry.get(key)
    if type(value) is not int or not lowest <= value < COUNT_LIMIT:
        raise ValueError(f"'{key}' is {str(value)[:40]}")
    return value


def _check_ranges(low: Range, high: Range, count: npt.NDArray[np.int64]) -> None:
    seen = count > 0
    # Written so that NaN fails it too.
    if not (np.isfinite(low[seen]).all() and np.isfinite(high[seen]).all() and (low <= high)[seen].all()):
        raise ValueError("its range is not finite and ordered")
    if not ((low[~seen] == math.inf).all() and (high[~seen] == -math.inf).all()):
        raise ValueError("it has a range without values")


def _check_histogram(histogram: BitHistogram, expected: int) -> None:
    _check_bins(histogram.keys, histogram.counts)
    if sum(histogram.counts.tolist()) != expected:
        raise ValueError("its bins do not hold as many values as it counts")
    if thin(histogram.keys, histogram.counts) != histogram:
        raise ValueError("its bins are not in order")


def _check_bins(keys: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64]) -> None:
    if (keys & ~SIGN >= INFINITE).any() or (counts < 1).any():
        raise ValueError("a bin is not valid, or is empty")


def _check_channels(channels: ChannelStatistics, tensor: TensorStatistics) -> None:
    count, zeros = channels.count, channels.zeros
    if (count < 0).any() or (zeros < 0).any() or (zeros > count).any():
        raise ValueError("a channel has a negative number of values")
    _check_ranges(channels.minimum, channels.maximum, count)
    both = (sum(count.tolist()), sum(zeros.tolist()))
    low, high = np.min(channels.minimum, initial=np.inf), np.max(channels.maximum, initial=-np.inf)
    is_whole = low == float(tensor.minimum) and high == float(tensor.maximum)
    if both != (tensor.count, tensor.zeros) or not is_whole:
        raise ValueError("its channels are not those of its values")
    histograms = channels.histograms
    if histograms is None:
        return
    _check_bins(histograms.keys, histograms.counts)
    # First the sum of all, in Python's integers: then no sum of some overflows.
    if sum(histograms.counts.tolist()) != tensor.count - tensor.zeros:
        raise ValueError("its channels' bins do not hold as many values as it counts")
    ordered = thin_channels(histograms.channels, histograms.keys, histograms.counts, channels.size)
    if ordered != histograms:
        raise ValueError("its channels' bins are not in order")
    held = np.zeros(channels.size, np.int64)
    np.add.at(held, histograms.channels, histograms.counts)
    if not np.array_equal(held, count - zeros):
        raise ValueError("a channel's bins do not hold as many values as it counts")
