"""The collectors by the name that ``--method`` takes."""

from collections.abc import Callable
from typing import Any, Protocol

from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.collectors.extended import ExtendedCollector
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


def make_collector(
    method: str, *, name: str = "", axis: int | None = None, allow_nonfinite: bool = False
) -> Collector:
    """Return a new collector.

    Args:
        method: what it keeps.
        name: of the tensor, for messages.
        axis: along which it keeps each channel's statistics besides, or None.
        allow_nonfinite: NaN and infinities are counted rather than refused.

    Raises:
        UnknownNameError: there is none of that name.

    Example:
        >>> make_collector("max").statistics().count
        0
    """
    require_known("method", method, COLLECTORS)
    collector = COLLECTORS[method]()
    if axis is None and not allow_nonfinite:
        return collector
    channels = None
    if axis is not None:
        channels = ChannelCollector(axis, histograms=method == "histogram", name=name)
    return ExtendedCollector(collector, channels, allow_nonfinite=allow_nonfinite)
