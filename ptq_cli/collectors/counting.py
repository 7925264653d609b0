"""What counts: numba on the host's arrays, PyTorch on the tensors of a device.

Both make collectors of the same kinds (``registry.Collector``), whose statistics have the same bytes for the
same values. Whoever feeds them does not know which of the two they are.
"""

from collections.abc import Callable

from ptq_cli.collectors.registry import Collector, make_collector
from ptq_cli.runtime.device import Device

MakeCollector = Callable[[str], Collector]
"""Returns a new collector, given the method."""


def counting_on(device: Device) -> MakeCollector:
    """Return what makes the collectors of tensors that are on a device.

    Example:
        >>> counting_on(Device())("max").statistics().count
        0
    """
    if device.is_host:
        return make_collector
    from ptq_cli.collectors.torch_collectors import make_torch_collector

    return make_torch_collector
