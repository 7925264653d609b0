"""The max collector: count, smallest and largest value, per tensor or per axis."""

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.granularity import Granularity, PerAxis, PerTensor
from ptq_cli.core.tensors import Array


class MaxCollector:
    """Keeps the range of what it is shown.

    Example:
        >>> collector = MaxCollector(PerAxis(1))
        >>> collector.update(np.array([[1.0, -5.0], [3.0, 2.0]], np.float32))
        True
        >>> collector.statistics().maximum.tolist()
        [3.0, 2.0]
    """

    def __init__(self, granularity: Granularity | None = None) -> None:
        self._granularity = granularity or PerTensor()
        self._axis = self._granularity.axis if isinstance(self._granularity, PerAxis) else None
        self._kept = no_statistics(self._axis)

    def update(self, array: Array) -> bool:
        """Add an array's values; return False if one of them is NaN or infinite, and then add nothing.

        Shapes:
            array: any, with the same size along the axis at each call.

        Raises:
            ValueError: the size along the axis changed.
        """
        if not array.size:
            return True
        axes = self._granularity.reduced_axes(array.shape)
        low, high = as_float32(array.min(axis=axes)), as_float32(array.max(axis=axes))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return False
        # Adding 0 makes -0.0 to 0.0: which of the two a minimum returns depends on the order of the values.
        low, high = np.asarray(low + np.float32(0)), np.asarray(high + np.float32(0))
        self._kept = self._kept.merge(TensorStatistics(array.size, 0, low, high, self._axis))
        return True

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""
        return self._kept


def no_statistics(axis: int | None) -> TensorStatistics:
    """Return the statistics of no values, the neutral element of merging.

    Shapes:
        minimum, maximum: (), or (0,) with an axis: how many channels there are is not known yet.

    Example:
        >>> no_statistics(None).count, no_statistics(None).maximum.tolist()
        (0, -inf)
    """
    shape = () if axis is None else (0,)
    return TensorStatistics(
        0, 0, np.full(shape, np.inf, np.float32), np.full(shape, -np.inf, np.float32), axis
    )


def as_float32(value: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return a value of any float type as float32, without copying what is float32 already.

    Edge case:
        A float64 beyond float32's range becomes infinite, and is reported as such.
    """
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(np.float32, copy=False)
