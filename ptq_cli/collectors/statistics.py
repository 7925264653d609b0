"""What is kept of one tensor: a commutative monoid under ``merge``."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import BitHistogram

Range = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of all the values that a tensor took.

    Attributes:
        count: how many values.
        zeros: how many of them were 0; only counted with a histogram, otherwise 0.
        minimum, maximum: smallest and largest value, per tensor or per index of ``axis``.
        axis: the axis that ``minimum`` and ``maximum`` keep, or None.
        histogram: the bit-keyed histogram, or None if none was kept.

    Shapes:
        minimum, maximum: (), or (C,) with an axis.

    Edge case:
        Without any value the minimum is +inf and the maximum -inf; with an axis both have shape (0,), because
        how many channels there are is not known. Such statistics are the neutral element of ``merge``.
    """

    count: int
    zeros: int
    minimum: Range
    maximum: Range
    axis: int | None = None
    histogram: BitHistogram | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorStatistics):
            return NotImplemented
        return (
            (self.count, self.zeros, self.axis) == (other.count, other.zeros, other.axis)
            and np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
            and self.histogram == other.histogram
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def low(self) -> float:
        """The smallest value of the whole tensor; 0 if it had none."""
        return float(np.min(self.minimum)) if self.count else 0.0

    @property
    def high(self) -> float:
        """The largest value of the whole tensor; 0 if it had none."""
        return float(np.max(self.maximum)) if self.count else 0.0

    def merge(self, other: "TensorStatistics") -> "TensorStatistics":
        """Return the statistics of both sets of values: exact, commutative, associative.

        Raises:
            ValueError: the two were not kept in the same way, or have different numbers of channels.
        """
        if self.axis != other.axis or (self.histogram is None) != (other.histogram is None):
            raise ValueError("statistics that were kept differently do not merge")
        ranges = self._merge_ranges(other)
        both = self.histogram.merge(other.histogram) if self.histogram and other.histogram else None
        return TensorStatistics(
            self.count + other.count,
            self.zeros + other.zeros,
            *ranges,
            self.axis,
            both,
        )

    def _merge_ranges(self, other: "TensorStatistics") -> tuple[Range, Range]:
        if not (self.count and other.count):
            full = self if self.count else other
            return full.minimum, full.maximum
        # numpy would broadcast one channel to many, and so merge what does not belong together.
        if self.minimum.shape != other.minimum.shape:
            raise ValueError(
                f"axis {self.axis} had {self.minimum.size} channels and now has {other.minimum.size}"
            )
        low, high = np.minimum(self.minimum, other.minimum), np.maximum(self.maximum, other.maximum)
        return np.asarray(low), np.asarray(high)
