"""What every collector can do, and the one that keeps a tensor's range."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import EMPTY_RANGE, FLOAT_MANTISSA_BITS, MAGNITUDE, find_range
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.tensors import Array

ORDERED_INFINITY = 0x7F800000
ORDERED_MINUS_INFINITY = -0x7F800001


class Collector(Protocol):
    """What every collector can do, on the host or on a device."""

    def update(self, array: Any, /) -> bool:
        """Add an array's values; return False, and add nothing, if one of them is NaN or infinite.

        The array is one of numpy, or a tensor on the device that the collector counts on (``counting``). It
        has been read when this returns.
        """

    def statistics(self) -> TensorStatistics:
        """Statistics of all updates so far."""


class MaxCollector:
    """Keeps the range of what it is shown.

    Example:
        >>> collector = MaxCollector()
        >>> collector.update(np.array([[1.0, -5.0], [3.0, 2.0]], np.float32))
        True
        >>> collector.statistics().low, collector.statistics().high
        (-5.0, 3.0)
    """

    def __init__(self) -> None:
        self._count = 0
        self._low, self._high = EMPTY_RANGE

    def update(self, array: Array) -> bool:
        """Add an array's values; return False if one of them is NaN or infinite, and then add nothing.

        Shapes: array: any.
        """
        bits = float_bits(array)
        low, high = find_range(bits.view(np.int32))
        return self.add_range(low, high, bits.size)

    def add_range(self, low: int, high: int, count: int) -> bool:
        """Do as ``update`` with values whose range is known, as ``find_range`` tells it."""
        if not count:
            return True
        # Nothing was added yet: a batch is counted as a whole or not at all.
        if not is_finite(low, high):
            return False
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._count += count
        return True

    def statistics(self) -> TensorStatistics:
        """Statistics of all updates so far."""
        if not self._count:
            return no_statistics()
        low, high = (np.array(_bits(key), np.uint32).view(np.float32) for key in (self._low, self._high))
        # Adding 0 makes -0.0 to 0.0: both are the zero that they are.
        zero = np.float32(0)
        return TensorStatistics(
            count=self._count, zeros=0, minimum=np.asarray(low + zero), maximum=np.asarray(high + zero)
        )


def float_bits(array: Array) -> npt.NDArray[np.uint32]:
    """Values as the bits of float32, in any order that memory has; float32 is not copied.

    Shapes: result: (N,).

    Example:
        >>> [hex(bits) for bits in float_bits(np.array([[1.0], [-0.0]]))]
        ['0x3f800000', '0x80000000']
    """
    return np.ascontiguousarray(as_float32(array)).reshape(-1).view(np.uint32)


def is_finite(low: int, high: int) -> bool:
    """Whether values whose range ``find_range`` told are all finite."""
    return low > ORDERED_MINUS_INFINITY and high < ORDERED_INFINITY


def top_exponent(low: int, high: int) -> int:
    """The biased exponent of the largest magnitude of a range that ``find_range`` told.

    Example:
        >>> top_exponent(*find_range(np.array([0.5, -3.0], np.float32).view(np.int32)))
        128
    """
    return max(_bits(low) & MAGNITUDE, _bits(high) & MAGNITUDE) >> FLOAT_MANTISSA_BITS


def _bits(key: int) -> int:
    """The bits of the float that ``find_range`` told as ``key``."""
    return int(key) & 0xFFFFFFFF if key >= 0 else (int(key) ^ MAGNITUDE) & 0xFFFFFFFF


def no_statistics() -> TensorStatistics:
    """The statistics of no values, the neutral element of merging.

    Example:
        >>> no_statistics().count, no_statistics().maximum.tolist()
        (0, -inf)
    """
    return TensorStatistics(
        count=0, zeros=0, minimum=np.asarray(np.float32(np.inf)), maximum=np.asarray(np.float32(-np.inf))
    )


def as_float32(value: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """A value of any float type as float32, without copying what is float32 already.

    Edge case: A float64 beyond float32's range becomes infinite, and is reported as such.
    """
    # A float64 beyond float32 becomes infinite, which the collector reports by itself.
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(np.float32, copy=False)
