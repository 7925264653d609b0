"""What is kept of one tensor, a commutative monoid under ``merge``: counts, range, and a histogram by bits.

The bins are the same for every batch and every tensor. What is kept of them is thinned to what a decision
can see: a tensor whose largest magnitude lies in octave E keeps 11 mantissa bits there, 10 in the octave
below, and so on down to 3, which makes all bins above max / 256 equally wide. A larger E thins more, never
less, and thinning twice is thinning once for the larger E; so thinned histograms still merge exactly.

Float32 has no octaves below 2^-126 to thin to, so a maximum below 2^-115 has the bins of one that lies there.
Nothing is decided from it: a range not above 2^-110 counts as zero (``ptq_cli.core.arithmetic``).
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.host_kernels import FLOAT_MANTISSA_BITS, MANTISSA_BITS, SMALLEST_TOP

KEY_SHIFT = FLOAT_MANTISSA_BITS - MANTISSA_BITS
SIGN = np.uint32(1 << (8 + MANTISSA_BITS))
INFINITE = 255 << MANTISSA_BITS
COARSEST_BITS = 3
PAGE_BINS = 1 << MANTISSA_BITS
_Keys = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BitHistogram:
    """Counts of the non-zero finite values, by bin.

    Attributes:
        keys: sorted; the top 20 bits of a bin's magnitude closest to 0, sign included.
        counts: how many values each bin holds, all above 0.

    Shapes: keys, counts: (B,).
    """

    keys: _Keys
    counts: Counts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BitHistogram):
            return NotImplemented
        return np.array_equal(self.keys, other.keys) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]

    @property
    def top_exponent(self) -> int:
        """Biased exponent of the largest magnitude; 0 if there is none."""
        return int(np.max(self.keys & ~SIGN, initial=0)) >> MANTISSA_BITS

    def lower_edges(self) -> npt.NDArray[np.float32]:
        """Each bin's magnitude closest to 0, without sign; it belongs to the bin."""
        return key_to_magnitude(self.keys & ~SIGN)

    def upper_edges(self) -> npt.NDArray[np.float64]:
        """Each bin's magnitude farthest from 0, without sign; it belongs to the next bin.

        Units: float64, because the last bin's edge is 2^128.
        """
        magnitudes = (self.keys & ~SIGN).astype(np.int64)
        width = PAGE_BINS // bins_per_octave(magnitudes >> MANTISSA_BITS, self.top_exponent)
        following = magnitudes + width
        edges = key_to_magnitude(following.astype(np.uint32)).astype(np.float64)
        edges[following == INFINITE] = 2.0**128
        return edges

    def fits(self, low: float, high: float) -> bool:
        """Whether the smallest and the largest value may be those of the values it counts, and of zeros.

        Example:
            >>> histogram = from_values(np.array([-4.0, 1.0, 3.0]))
            >>> histogram.fits(-4.0, 3.0), histogram.fits(-4.0, 4.0), histogram.fits(0.0, 3.0)
            (True, False, False)
        """
        negative, lower, upper = (self.keys & SIGN) != 0, self.lower_edges(), self.upper_edges()
        for side, extreme in ((~negative, high), (negative, -low)):
            if not side.any():
                if extreme > 0:
                    return False
            elif not float(lower[side].max()) <= extreme < float(upper[side].max()):
                return False
        return True

    def merge(self, other: "BitHistogram") -> "BitHistogram":
        """The histogram of both sets of values: exact, commutative, associative.

        Example:
            >>> one, two = from_values(np.array([1.0, 2.0])), from_values(np.array([2.0, -4.0]))
            >>> one.merge(two) == from_values(np.array([-4.0, 1.0, 2.0, 2.0]))
            True
        """
        keys = np.concatenate([self.keys, other.keys])
        counts = np.concatenate([self.counts, other.counts])
        return thin(keys, counts)


EMPTY = BitHistogram(np.zeros(0, np.uint32), np.zeros(0, np.int64))


def thin(keys: _Keys, counts: Counts) -> BitHistogram:
    """The histogram of bins given in any order, thinned to their own largest octave.

    Shapes: keys, counts: (N,); keys may repeat and counts may be 0.
    """
    keys, counts = keys[counts > 0], counts[counts > 0]
    if not keys.size:
        return EMPTY
    top = int(np.max(keys & ~SIGN)) >> MANTISSA_BITS
    magnitudes = (keys & ~SIGN).astype(np.int64)
    width = PAGE_BINS // bins_per_octave(magnitudes >> MANTISSA_BITS, top)
    unique, inverse = np.unique(
        (magnitudes // width * width).astype(np.uint32) | (keys & SIGN), return_inverse=True
    )
    summed = np.zeros(unique.size, np.int64)
    np.add.at(summed, inverse, counts)
    return BitHistogram(unique, summed)


def from_values(values: npt.ArrayLike) -> BitHistogram:
    """The histogram of values, slowly; the definition that the kernel is tested against.

    Edge case: Zeros, NaN and infinities are not counted.

    Example:
        >>> from_values([1.0, 1.0, 0.0]).counts.tolist()
        [2]
    """
    array = np.asarray(values, dtype=np.float32).ravel()
    kept = array[np.isfinite(array) & (array != 0)]
    keys = kept.view(np.uint32) >> np.uint32(KEY_SHIFT)
    return thin(keys, np.ones(keys.size, np.int64))


def key_to_magnitude(magnitudes: _Keys) -> npt.NDArray[np.float32]:
    """The smallest float32 of each bin, given keys without sign.

    Example:
        >>> key_to_magnitude(np.array([127 << 11], np.uint32)).tolist()
        [1.0]
    """
    return (magnitudes.astype(np.uint32) << np.uint32(KEY_SHIFT)).view(np.float32)


def bins_per_octave(exponents: npt.NDArray[np.int64], top: int) -> npt.NDArray[np.int64]:
    """How many bins each octave has, where the largest magnitude lies in octave ``top``.

    Shapes: exponents: any, biased; the result has the same, powers of two.

    Example:
        >>> bins_per_octave(np.array([130, 129, 128, 100]), 130).tolist()
        [2048, 1024, 512, 8]
    """
    below = max(top, SMALLEST_TOP) - exponents
    return np.left_shift(np.int64(1), np.clip(MANTISSA_BITS - below, COARSEST_BITS, MANTISSA_BITS))


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
