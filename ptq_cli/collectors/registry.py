"""The collectors by the name that ``--method`` takes."""

from collections.abc import Callable
from typing import Any, Protocol

from ptq_cli.collectors.histogram import HistogramCollector
from ptq_cli.collectors.max import MaxCollector
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.errors import require_known


class Collector(Protocol):
    """What every collector can do, on the host or on a device."""

    def update(self, array: Any, /) -> bool:
        """Add an array's values; return False, and add nothing, if one of them is NaN or infinite.

        The array is one of numpy, or a tensor on the device that the collector counts on (``counting``). It
        has been read when this returns.
        """

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""


COLLECTORS: dict[str, Callable[[], Collector]] = {"histogram": HistogramCollector, "max": MaxCollector}


def make_collector(method: str) -> Collector:
    """Return a new collector.

    Raises:
        UnknownNameError: there is none of that name.

    Example:
        >>> make_collector("max").statistics().count
        0
    """
    require_known("method", method, COLLECTORS)
    return COLLECTORS[method]()
