"""Statistics of many tensors as flat arrays, and a list that says where each tensor's part lies.

A file from outside is hostile: what is read back is checked so far that every amax method can rely on it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.tensor_statistics import (
    INFINITE,
    SIGN,
    BitHistogram,
    NonFinite,
    TensorStatistics,
    thin,
)

FlatArrays = dict[str, npt.NDArray[Any]]
_Entry = dict[str, Any]
_ARRAYS: dict[str, np.dtype[Any]] = {
    "keys": np.dtype("<u4"),
    "counts": np.dtype("<i8"),
    "minimum": np.dtype("<f4"),
    "maximum": np.dtype("<f4"),
}
COUNT_LIMIT = 2**63


def flatten(statistics: Mapping[str, TensorStatistics]) -> tuple[FlatArrays, list[_Entry]]:
    """The arrays and the entries, in the order of the names.

    Shapes: keys, counts: (all bins,). minimum, maximum: (tensors,).
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
    return arrays, {
        "bins": item.histogram.keys.size if item.histogram is not None else None,
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
    _check_range(float(low[0]), float(high[0]), count)
    histogram = None
    if entry.get("bins") is not None:
        bins = _whole(entry, "bins")
        histogram = BitHistogram(rest["keys"].take(bins), rest["counts"].take(bins))
        _check_histogram(histogram, count - zeros)
        if not histogram.fits(float(low[0]), float(high[0])):
            raise ValueError("its bins are not those of its range")
    return TensorStatistics(
        count=count,
        zeros=zeros,
        minimum=low.reshape(()),
        maximum=high.reshape(()),
        histogram=histogram,
        nonfinite=nonfinite,
    )


def _whole(entry: _Entry, key: str) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < COUNT_LIMIT:
        raise ValueError(f"'{key}' is {str(value)[:40]}")
    return value


def _check_range(low: float, high: float, count: int) -> None:
    # Written so that NaN fails it too.
    if count and not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError("its range is not finite and ordered")
    if not count and (low, high) != (math.inf, -math.inf):
        raise ValueError("it has a range without values")


def _check_histogram(histogram: BitHistogram, expected: int) -> None:
    if (histogram.keys & ~SIGN >= INFINITE).any() or (histogram.counts < 1).any():
        raise ValueError("a bin is not valid, or is empty")
    if sum(histogram.counts.tolist()) != expected:
        raise ValueError("its bins do not hold as many values as it counts")
    if thin(histogram.keys, histogram.counts) != histogram:
        raise ValueError("its bins are not in order")
