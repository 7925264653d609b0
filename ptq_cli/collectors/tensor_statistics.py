"""What is kept of one tensor: a commutative monoid under ``merge``."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.bit_histogram import BitHistogram

Range = npt.NDArray[np.float32]


@dataclass(frozen=True)
class NonFinite:
    """How many values were not finite.

    Example:
        >>> NonFinite(nan=1).merge(NonFinite(negative=2)).total
        3
    """

    nan: Annotated[int, "NaN."] = 0
    positive: Annotated[int, "Infinities of each sign."] = 0
    negative: Annotated[int, "Infinities of each sign."] = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.nan + self.positive + self.negative

    def merge(self, other: "NonFinite") -> "NonFinite":
        """The counts of both sets of values."""
        return NonFinite(self.nan + other.nan, self.positive + other.positive, self.negative + other.negative)


ALL_FINITE = NonFinite()


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """Statistics of all the values that a tensor took.

    Attributes:
        count: how many finite values.
        zeros: how many of them were 0; only counted with a histogram, otherwise 0.
        minimum, maximum: smallest and largest finite value.
        histogram: the bit-keyed histogram of the finite values, or None if none was kept.
        nonfinite: how many values were NaN or infinite; none unless that was allowed.

    Shapes: minimum, maximum: ().
    Edge case: Without any finite value the minimum is +inf and the maximum -inf. Without any value at all,
        such statistics are the neutral element of ``merge``.
    """

    count: int
    zeros: int
    minimum: Range
    maximum: Range
    histogram: BitHistogram | None = None
    nonfinite: NonFinite = field(default=ALL_FINITE)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorStatistics):
            return NotImplemented
        return (
            (self.count, self.zeros, self.nonfinite) == (other.count, other.zeros, other.nonfinite)
            and np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
            and self.histogram == other.histogram
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def low(self) -> float:
        """The smallest finite value; 0 if there was none."""
        return float(self.minimum) if self.count else 0.0

    @property
    def high(self) -> float:
        """The largest finite value; 0 if there was none."""
        return float(self.maximum) if self.count else 0.0

    @property
    def dead(self) -> bool:
        """Whether it had values, and all of them were 0."""
        return self.count > 0 and self.low == self.high == 0.0 and not self.nonfinite.total

    @property
    def rangeless(self) -> bool:
        """Whether it had values, and none of them was finite."""
        return not self.count and self.nonfinite.total > 0

    @property
    def unseen(self) -> bool:
        """Whether it had no values at all, as in a branch that was never taken."""
        return not self.count and not self.nonfinite.total

    def merge(self, other: "TensorStatistics") -> "TensorStatistics":
        """The statistics of both sets of values: exact, commutative, associative.

        Raises: ValueError: the two were not kept in the same way.
        """
        # Adding them would leave out one part's values without a word.
        if (self.histogram is None) != (other.histogram is None):
            raise ValueError("statistics that were kept differently do not merge")
        return TensorStatistics(
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            minimum=np.asarray(np.minimum(self.minimum, other.minimum)),
            maximum=np.asarray(np.maximum(self.maximum, other.maximum)),
            histogram=self.histogram.merge(other.histogram) if self.histogram and other.histogram else None,
            nonfinite=self.nonfinite.merge(other.nonfinite),
        )
