"""What a collector can do."""

from typing import Any, Protocol

from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics


class Collector(Protocol):
    """What every collector can do, on the host or on a device."""

    def update(self, array: Any, /) -> bool:
        """Add an array's values; return False, and add nothing, if one of them is NaN or infinite.

        The array is one of numpy, or a tensor on the device that the collector counts on (``counting``). It
        has been read when this returns.
        """

    def statistics(self) -> TensorStatistics:
        """Return what was kept so far."""
