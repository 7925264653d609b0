"""A collector with what is kept on request only: each channel's statistics, counts of NaN and infinities."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.collectors.collector import Collector
from ptq_cli.collectors.max_collector import as_float32
from ptq_cli.collectors.statistics.tensor_statistics import NONE, NonFinite, TensorStatistics
from ptq_cli.core.tensors import Array


class ExtendedCollector:
    """Passes each array on to another collector, and keeps the additional statistics itself.

    Args:
        collector: of the tensor as a whole.
        channels: of its channels, or None.
        allow_nonfinite: NaN and infinities are counted; everything else is then that of the finite values.

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
        self._nonfinite = NONE

    def update(self, array: Array) -> bool:
        """Add an array's values; return False, and add nothing, if one is not finite and that is not allowed.

        Raises:
            ActivationAxisError: the array has no such axis, or not as many channels as before.
        """
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
        """Return what was kept so far."""
        channels = self._channels.statistics() if self._channels is not None else None
        return replace(self._collector.statistics(), channels=channels, nonfinite=self._nonfinite)


def count_nonfinite(values: npt.NDArray[np.float32]) -> NonFinite:
    """Return how many values are NaN and infinite.

    Shapes:
        values: any.

    Example:
        >>> count_nonfinite(np.float32([np.nan, np.inf, 0.0]))
        NonFinite(nan=1, positive=1, negative=0)
    """
    return NonFinite(
        int(np.count_nonzero(np.isnan(values))),
        int(np.count_nonzero(np.isposinf(values))),
        int(np.count_nonzero(np.isneginf(values))),
    )
