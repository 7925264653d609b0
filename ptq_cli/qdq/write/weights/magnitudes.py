"""What a weight's values are like, channel by channel: the largest, their sum, and how many are not zero."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.numbers.arithmetic import ZERO_AMAX, FloatArray
from ptq_cli.core.numbers.granularity import Granularity

BLOCK = 1 << 17
"""Elements that are looked at together: they stay in a core's cache between one question and the next."""


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """Absolute values of a weight.

    Attributes:
        granularity: what shares a number below.
        largest: of each channel; NaN or Inf where the channel holds one.
        total: of each channel, added up.
        nonzero: how many values of each channel are not zero.

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

    Raises:
        AxisError: the weight has no such axis.

    Example:
        >>> from ptq_cli.core.numbers.granularity import PerAxis
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
    rows = max(1, BLOCK * len(weight) // max(weight.size, 1))
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
