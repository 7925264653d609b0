"""Statistics of many tensors as four flat arrays, and a list that says where each tensor's part lies.

A file from outside is hostile: what is read back is checked so far that every amax method can rely on it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import INFINITE, SIGN, BitHistogram, thin
from ptq_cli.collectors.statistics import Range, TensorStatistics

Arrays = dict[str, npt.NDArray[Any]]
Entry = dict[str, Any]
ARRAYS: dict[str, np.dtype[Any]] = {
    "keys": np.dtype("<u4"),
    "counts": np.dtype("<i8"),
    "minimum": np.dtype("<f4"),
    "maximum": np.dtype("<f4"),
}
COUNT_LIMIT = 2**63


def flatten(statistics: Mapping[str, TensorStatistics]) -> tuple[Arrays, list[Entry]]:
    """Return the arrays and the entries, in the order of the names.

    Shapes:
        keys, counts: (all bins,). minimum, maximum: (all channels,), one for a tensor without axis.
    """
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [np.zeros(0, dtype)] for name, dtype in ARRAYS.items()}
    entries = []
    for name, item in sorted(statistics.items()):
        bins = channels = None
        if item.histogram is not None:
            parts["keys"].append(item.histogram.keys)
            parts["counts"].append(item.histogram.counts)
            bins = item.histogram.keys.size
        if item.axis is not None:
            channels = item.minimum.size
        parts["minimum"].append(item.minimum.reshape(-1))
        parts["maximum"].append(item.maximum.reshape(-1))
        where = {"axis": item.axis, "channels": channels, "bins": bins}
        entries.append({"name": name, "count": item.count, "zeros": item.zeros} | where)
    return {name: np.concatenate(items).astype(ARRAYS[name]) for name, items in parts.items()}, entries


def unflatten(entries: Any, arrays: Arrays) -> dict[str, TensorStatistics]:
    """Return the statistics that ``flatten`` took apart.

    Args:
        entries: a list of entries, or whatever stands in its place in a file from outside.
        arrays: by name.

    Raises:
        ValueError: the entries or the arrays cannot come from ``flatten``; the message names the tensor.
    """
    for name, dtype in ARRAYS.items():
        if name not in arrays or arrays[name].dtype != dtype:
            raise ValueError(f"the array '{name}' is missing, or is not {dtype}")
    if len(arrays) != len(ARRAYS) or not isinstance(entries, list):
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
            raise ValueError(f"{size} values are wanted, {self.left} are left")
        self._at += size
        return self._array[self._at - size : self._at]


def _read_entry(entry: Entry, rest: Mapping[str, _Parts]) -> TensorStatistics:
    count, zeros = _whole(entry, "count"), _whole(entry, "zeros")
    axis = _whole(entry, "axis", lowest=-COUNT_LIMIT) if entry.get("axis") is not None else None
    channels = _whole(entry, "channels") if axis is not None else 1
    shape = () if axis is None else (channels,)
    low, high = (rest[name].take(channels).reshape(shape) for name in ("minimum", "maximum"))
    _check_ranges(low, high, count)
    if entry.get("bins") is None:
        return TensorStatistics(count, zeros, low, high, axis)
    bins = _whole(entry, "bins")
    histogram = BitHistogram(rest["keys"].take(bins), rest["counts"].take(bins))
    _check_histogram(histogram, count - zeros)
    return TensorStatistics(count, zeros, low, high, axis, histogram)


def _whole(entry: Entry, key: str, lowest: int = 0) -> int:
    value = entry.get(key)
    if type(value) is not int or not lowest <= value < COUNT_LIMIT:
        raise ValueError(f"'{key}' is {str(value)[:40]}")
    return value


def _check_ranges(low: Range, high: Range, count: int) -> None:
    # Written so that NaN fails it too.
    if count and not (
        low.size and np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()
    ):
        raise ValueError("its range is not finite and ordered")
    if not count and not ((low == math.inf).all() and (high == -math.inf).all()):
        raise ValueError("it has a range without values")


def _check_histogram(histogram: BitHistogram, expected: int) -> None:
    if (histogram.keys & ~SIGN >= INFINITE).any() or (histogram.counts < 1).any():
        raise ValueError("a bin is no bin, or holds nothing")
    # In Python's integers, because sums of hostile counts overflow.
    if sum(histogram.counts.tolist()) != expected:
        raise ValueError("its bins do not hold as many values as it counts")
    if thin(histogram.keys, histogram.counts) != histogram:
        raise ValueError("its bins are not in order")
