"""Collectors of tensors on a device: some count there, the others are handed a copy on the host."""

import torch

from ptq_cli.collectors.collector_registry import Collector, make_collector
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.collectors.torch_collectors import TORCH_COLLECTORS
from ptq_cli.core.known_names import require_known
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.tapping.on_device import as_array


class _OnHost:
    """Counts on the host what is on a device."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def update(self, tensor: torch.Tensor | Array) -> bool:
        return self._collector.update(as_array(tensor) if isinstance(tensor, torch.Tensor) else tensor)

    def statistics(self) -> TensorStatistics:
        return self._collector.statistics()


def make_torch_collector(
    method: str, *, name: str = "", axis: int | None = None, allow_nonfinite: bool = False
) -> Collector:
    """Return a new collector for tensors on a device; its arguments are those of ``make_collector``.

    Edge case:
        Channels, and values that need not be finite, are counted on the host.

    Raises:
        UnknownNameError: there is none of that name.

    Example:
        >>> make_torch_collector("max").statistics().count
        0
    """
    require_known("method", method, TORCH_COLLECTORS)
    if axis is None and not allow_nonfinite:
        return TORCH_COLLECTORS[method]()
    return _OnHost(make_collector(method, name=name, axis=axis, allow_nonfinite=allow_nonfinite))
