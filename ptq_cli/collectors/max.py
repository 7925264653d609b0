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
        self._count = 0
        self._minimum: npt.NDArray[np.float32] = np.full((), np.inf, np.float32)
        self._maximum: npt.NDArray[np.float32] = np.full((), -np.inf, np.float32)

    def update(self, array: Array) -> bool:
        """Add an array's values; return False if one of them is NaN or infinite, and then add nothing.

        Shapes:
            array: any, with the same size along the axis at each call.
        """
        if not array.size:
            return True
        axes = self._granularity.reduced_axes(array.shape)
        low, high = as_float32(array.min(axis=axes)), as_float32(array.max(axis=axes))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return False
        self._count += array.size
        self._minimum, self._maximum = np.minimum(self._minimum, low), np.maximum(self._maximum, high)
        return True

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""
        axis = self._granularity.axis if isinstance(self._granularity, PerAxis) else None
        return TensorStatistics(self._count, 0, self._minimum.copy(), self._maximum.copy(), axis)


def as_float32(value: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return a value of any float type as float32.

    Edge case:
        A float64 beyond float32's range becomes infinite, and is reported as such.
    """
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(np.float32)
