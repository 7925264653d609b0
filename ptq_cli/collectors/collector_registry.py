"""The collectors by the name that ``--method`` takes, and one that counts NaN and infinities."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import Collector, MaxCollector, as_float32
from ptq_cli.collectors.tensor_statistics import ALL_FINITE, NonFinite, TensorStatistics
from ptq_cli.core.tensors import Array
from ptq_cli.core.words import require_known


class FiniteCollector:
    """Passes the finite values of each array on to another collector, and counts NaN and infinities.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> collector = FiniteCollector(MaxCollector())
        >>> collector.update(np.float32([1.0, np.nan, -np.inf]))
        True
        >>> collector.statistics().high, collector.statistics().nonfinite
        (1.0, NonFinite(nan=1, positive=0, negative=1))
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._nonfinite = ALL_FINITE

    def update(self, array: Array) -> bool:
        """Add an array's values, and return True."""
        values = as_float32(array)
        if not self._collector.update(values):
            self._nonfinite = self._nonfinite.merge(count_nonfinite(values))
            self._collector.update(values[np.isfinite(values)])
        return True

    def statistics(self) -> TensorStatistics:
        """Statistics of all updates so far."""
        return replace(self._collector.statistics(), nonfinite=self._nonfinite)


def count_nonfinite(values: npt.NDArray[np.float32]) -> NonFinite:
    """How many values are NaN and infinite.

    Shapes: values: any.

    Example:
        >>> count_nonfinite(np.float32([np.nan, np.inf, 0.0]))
        NonFinite(nan=1, positive=1, negative=0)
    """
    return NonFinite(
        int(np.count_nonzero(np.isnan(values))),
        int(np.count_nonzero(np.isposinf(values))),
        int(np.count_nonzero(np.isneginf(values))),
    )


COLLECTORS: dict[str, Callable[[], Collector]] = {"histogram": HistogramCollector, "max": MaxCollector}


def make_collector(method: str, *, allow_nonfinite: bool = False) -> Collector:
    """A new collector; with ``allow_nonfinite`` NaN and infinities are counted and not refused.

    Example:
        >>> make_collector("max").statistics().count
        0
    """
    require_known("method", method, COLLECTORS)
    collector = COLLECTORS[method]()
    return FiniteCollector(collector) if allow_nonfinite else collector
