"""Magnitudes of a weight, channel by channel, and values that leave all others only a few steps."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters
from ptq_cli.core.formats import Granularity, PerTensor

_BLOCK = 1 << 17  # elements that are looked at together: they stay in a core's cache
MOST_RATIO = 64.0  # range's end to the mean beside the largest value: 2 of 127 steps; Laplace weights have 12
MOST_CHANNEL_RATIO = 16.0  # largest channel's amax to the median one's, where all share a scale: 8 steps
FEWEST_CHANNELS = 4  # of an axis whose channels are compared


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """Absolute values of a weight: the largest, the sum, and how many are not zero.

    A channel that holds NaN or Inf has it as its largest.

    Shapes:
        Each as the granularity's scale.
    """

    granularity: Granularity
    largest: FloatArray
    total: npt.NDArray[np.float64]
    nonzero: npt.NDArray[np.int64]

    @property
    def is_finite(self) -> bool:
        """No value is NaN or Inf."""
        return bool(np.isfinite(self.largest).all())

    @property
    def zero(self) -> npt.NDArray[np.bool_]:
        """Which channels count as all zero."""
        return np.asarray(self.largest <= ZERO_AMAX)


def magnitudes_of(weight: FloatArray, granularity: Granularity) -> Magnitudes:
    """Return the magnitudes of a weight, which is read once.

    Shapes:
        weight: any; the result's as the granularity's scale.

    Edge case:
        A channel without values has magnitudes of 0. NaN in a channel makes its largest NaN.

    Example:
        >>> from ptq_cli.core.formats import PerAxis
        >>> found = magnitudes_of(np.float32([[1.0, -2.0], [0.0, 0.5]]), PerAxis(0))
        >>> found.largest.tolist(), found.total.tolist(), found.nonzero.tolist()
        ([2.0, 0.5], [3.0, 0.5], [2, 1])
    """
    shape = granularity.scale_shape(weight.shape)
    axes = granularity.reduced_axes(weight.shape)
    largest = np.zeros(shape, np.float32)
    total, nonzero = np.zeros(shape, np.float64), np.zeros(shape, np.int64)
    if weight.ndim == 0:
        return Magnitudes(granularity, np.abs(weight), total + np.abs(weight), nonzero + (weight != 0))
    rows = max(1, _BLOCK * len(weight) // max(weight.size, 1))
    apart = bool(shape) and 0 not in axes  # Each row has numbers of its own.
    block = np.empty((min(rows, len(weight)), *weight.shape[1:]), np.float32)
    for start in range(0, len(weight), rows):
        part = weight[start : start + rows]
        magnitude = np.abs(part, out=block[: len(part)])
        own = slice(start, start + rows) if apart else ...
        largest[own] = np.maximum(largest[own], magnitude.max(axis=axes, initial=0.0))
        total[own] += magnitude.sum(axis=axes)
        size = magnitude.size // max(total[own].size, 1)
        nonzero[own] += size if magnitude.all() else np.count_nonzero(magnitude, axis=axes)
    return Magnitudes(granularity, largest, total, nonzero)


@dataclass(frozen=True)
class Outlier:
    """The worst of a weight's outliers, of ``channels`` that have one.

    The ``axis`` is None for a value of a weight with one scale; it is ``ratio`` times as large as others.
    """

    axis: int | None
    channel: int
    ratio: float
    channels: int

    @property
    def _where(self) -> str:
        return f"channel {self.channel} (axis {self.axis})"

    def describe(self) -> str:
        """Say what it is.

        Example:
            >>> Outlier(0, 3, 211.4, 2).describe()
            'a value of channel 3 (axis 0) is 211 times the mean of the others, and of 1 more channel'
            >>> Outlier(None, 0, 99.6, 1).describe()
            'a value is 100 times the mean of the others'
        """
        if self.axis is None:
            return f"a value is {self.ratio:.0f} times the mean of the others"
        more = self.channels - 1
        rest = f", and of {more} more channel{'' if more == 1 else 's'}" if more else ""
        return f"a value of {self._where} is {self.ratio:.0f} times the mean of the others{rest}"


@dataclass(frozen=True)
class LargeChannel(Outlier):
    """A channel that is far larger than the others with which it shares a scale.

    Without ``is_asked`` no recipe asks for one scale: the layer reads no others.
    """

    is_asked: bool = True

    def describe(self) -> str:
        """Say how large it is beside the median one, with which it shares a scale."""
        why = "all share a scale" if self.is_asked else "its layer takes one scale"
        return f"{self._where} is {self.ratio:.0f} times as large as the median one, and {why}"


@dataclass(frozen=True)
class Vanished(Outlier):
    """Channels of which every value is less than half a step of the scale that a rule allows."""

    def describe(self) -> str:
        """Say how many they are.

        Example:
            >>> Vanished(None, 0, 0.0, 2).describe()
            '2 channels are not 0, but too small for a scale, and all their values become 0'
        """
        if self.channels > 1:
            subject, whose = f"{self.channels} channels are", "their"
        else:
            subject, whose = "it is" if self.axis is None else "a channel is", "its"
        return f"{subject} not 0, but too small for a scale, and all {whose} values become 0"


def find_vanished(scale: FloatArray, magnitudes: Magnitudes) -> Vanished | None:
    """Return the channels that are not 0, and whose integers are; None where there are none.

    Shapes:
        scale: as the granularity's.

    Example:
        >>> from ptq_cli.core.formats import PerAxis
        >>> found = magnitudes_of(np.float32([[1e-9, 0.0], [1.0, 0.5]]), PerAxis(0))
        >>> find_vanished(np.float32([1.0, 0.01]), found).channels
        1
        >>> find_vanished(np.float32([1e-11, 0.01]), found) is None
        True
    """
    gone = np.atleast_1d((magnitudes.largest > 0) & (magnitudes.largest <= scale / 2))
    if not gone.any():
        return None
    axis = None if isinstance(magnitudes.granularity, PerTensor) else magnitudes.granularity.axes[-1]
    return Vanished(axis, int(np.argmax(gone)), 0.0, int(gone.sum()))


def find_outlier(weight: FloatArray, parameters: QuantParameters, magnitudes: Magnitudes) -> Outlier | None:
    """Return the outlier that leaves most of a weight only a few steps, or None.

    A method that clips has a range that ends below the outlier: the scale tells, not the values.

    Shapes:
        weight: any; the parameters' scale has one element for each channel, or one for all.

    Edge case:
        Zeros do not count: the mean of a pruned weight is of the others. A weight without values has none.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW, PerAxis
        >>> weight = np.ones((2, 100), np.float32)
        >>> weight[1, 5] = 500.0
        >>> scale = np.float32([1, 500]) / 127
        >>> decided = QuantParameters(scale, np.zeros(2, np.int64), INT8_NARROW, PerAxis(0))
        >>> found = find_outlier(weight, decided, magnitudes_of(weight, PerAxis(0)))
        >>> found.channel, found.ratio
        (1, 500.0)
    """
    if not weight.size:
        return None
    granularity = parameters.granularity
    end = np.asarray(parameters.scale, np.float64) * parameters.format.qmax
    ratios = np.atleast_1d(_ratios(magnitudes, end))
    count, worst, is_whole = (
        int((ratios > MOST_RATIO).sum()),
        int(np.argmax(ratios)),
        isinstance(granularity, PerTensor),
    )
    if not count:
        return _large_channel(weight) if is_whole else None
    reduced = granularity.reduced_axes(weight.shape)
    axis = None if is_whole else max(index for index in range(weight.ndim) if index not in reduced)
    channel = int(np.unravel_index(worst, ratios.shape)[-1])
    return Outlier(axis, channel, float(ratios.flat[worst]), count)


def _ratios(magnitudes: Magnitudes, end: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the end of each channel's range over the mean of its values, the largest not counted."""
    largest = magnitudes.largest.astype(np.float64)
    others = magnitudes.nonzero - 1
    total = magnitudes.total - largest
    is_told = (others > 0) & (total > ZERO_AMAX)
    mean = np.where(is_told, total / np.maximum(others, 1), 1.0)
    result: npt.NDArray[np.float64] = np.where(is_told, np.minimum(largest, end) / mean, 0.0)
    return result


def _large_channel(weight: FloatArray) -> LargeChannel | None:
    """Return the channel, along any axis, that is far larger than those it shares a scale with."""
    worst, magnitude = None, np.abs(weight)
    for axis, size in enumerate(magnitude.shape):
        if magnitude.ndim < 2 or size < FEWEST_CHANNELS:
            continue
        amax = magnitude.max(axis=tuple(index for index in range(magnitude.ndim) if index != axis))
        median = float(np.median(amax))
        ratio = float(amax.max()) / median if median > ZERO_AMAX else 0.0
        if ratio > max(MOST_CHANNEL_RATIO, worst.ratio if worst is not None else 0.0):
            worst = LargeChannel(axis, int(np.argmax(amax)), ratio, 1)
    return worst
