"""What counts: numba on the host's arrays, PyTorch on the tensors of a device.

Both make collectors of the same kinds (``collectors.collector.Collector``), whose statistics have the same
bytes for the same values. Whoever feeds them does not know which of the two they are.
"""

from typing import Protocol

from ptq_cli.collectors.collector import Collector
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.runtime.device import Device


class MakeCollector(Protocol):
    """What ``collector_registry.make_collector`` is."""

    def __call__(
        self, method: str, *, name: str = "", axis: int | None = None, allow_nonfinite: bool = False
    ) -> Collector:
        """Return a new collector."""


def counting_on(device: Device) -> MakeCollector:
    """Return what makes the collectors of tensors that are on a device.

    Example:
        >>> counting_on(Device())("max").statistics().count
        0
    """
    if device.is_host:
        return make_collector
    from ptq_cli.pipeline.calibration.counting.device_collectors import make_torch_collector

    return make_torch_collector
