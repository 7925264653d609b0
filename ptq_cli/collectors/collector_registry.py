"""The collectors by the name that ``--method`` takes, with what is kept of channels and of NaN on request."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import Collector, MaxCollector, as_float32
from ptq_cli.collectors.tensor_statistics import ALL_FINITE, NonFinite, TensorStatistics
from ptq_cli.core.tensors import Array
from ptq_cli.core.words import require_known


class ExtendedCollector:
    """Passes each array on to another collector, and keeps statistics of channels and of NaN and infinities.

    Where these are allowed, everything else is that of the finite values.

    Example:
        >>> from ptq_cli.collectors.max_collector import MaxCollector
        >>> collector = ExtendedCollector(MaxCollector(), None, allow_nonfinite=True)
        >>> collector.update(np.float32([1.0, np.nan, -np.inf]))
        True
        >>> collector.statistics().high, collector.statistics().nonfinite
        (1.0, NonFinite(nan=1, positive=0, negative=1))
    """

    def __init__(
        self, collector: Collector, channels: ChannelCollector | None, *, allow_nonfinite: bool
    ) -> None:
        self._collector = collector
        self._channels = channels
        self._allow = allow_nonfinite
        self._nonfinite = ALL_FINITE

    def update(self, array: Array) -> bool:
        """Add an array's values; if one is not finite and that is not allowed, add nothing, return False."""
        values = as_float32(array)
        if not self._collector.update(values):
            if not self._allow:
                return False
            self._nonfinite = self._nonfinite.merge(count_nonfinite(values))
            self._collector.update(values[np.isfinite(values)])
        if self._channels is not None:
            self._channels.update(values)
        return True

    def statistics(self) -> TensorStatistics:
        """Statistics of all updates so far."""
        channels = self._channels.statistics() if self._channels is not None else None
        return replace(self._collector.statistics(), channels=channels, nonfinite=self._nonfinite)


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


def make_collector(
    method: str, *, name: str = "", axis: int | None = None, allow_nonfinite: bool = False
) -> Collector:
    """A new collector; messages call its tensor ``name``.

    With ``axis`` it keeps statistics of each channel, too; with ``allow_nonfinite`` NaN and infinities are
    counted and not refused.

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
