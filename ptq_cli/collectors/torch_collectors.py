"""The collectors for tensors on a device: they count there, and only finished counts come to the host."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ptq_cli.collectors.bit_histogram import EMPTY, BitHistogram, thin
from ptq_cli.collectors.histogram_collector import read_table
from ptq_cli.collectors.host_kernels import SMALLEST_TOP
from ptq_cli.collectors.max_collector import Collector, MaxCollector, is_finite, top_exponent
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.collectors.torch_kernels import count_keys, count_values, find_range, new_table
from ptq_cli.core.errors import RuntimeFailedError


class TorchMaxCollector:
    """Keeps the range of the tensors that it is shown, as ``MaxCollector`` does, per tensor.

    Example:
        >>> collector = TorchMaxCollector()
        >>> collector.update(torch.tensor([[1.0, -5.0], [3.0, 2.0]]))
        True
        >>> float(collector.statistics().maximum)
        3.0
    """

    def __init__(self) -> None:
        self._range = MaxCollector()

    def update(self, tensor: torch.Tensor) -> bool:
        """Add a tensor's values; return False if one of them is NaN or infinite, and then add nothing.

        Shapes: tensor: any.
        """
        with _memory_is_there(tensor):
            low, high = find_range(tensor)
        return self._range.add_range(low, high, tensor.numel())

    def statistics(self) -> TensorStatistics:
        """Statistics of all updates so far."""
        return self._range.statistics()


class TorchHistogramCollector:
    """Counts every value by its bits, as ``HistogramCollector`` does, in a table on the device.

    Example:
        >>> collector = TorchHistogramCollector()
        >>> collector.update(torch.tensor([0.0, 1.0, 1.0, -2.0]))
        True
        >>> statistics = collector.statistics()
        >>> statistics.zeros, statistics.histogram.counts.tolist()
        (1, [2, 1])
    """

    def __init__(self) -> None:
        self._range = MaxCollector()
        self._table: torch.Tensor | None = None
        self._top = SMALLEST_TOP - 1
        self._settled, self._zeros = EMPTY, 0

    def update(self, tensor: torch.Tensor) -> bool:
        """Add a tensor's values; return False if one of them is NaN or infinite, and then add nothing.

        When it returns, the values have been read: their memory may be used again.

        Shapes: tensor: any.
        """
        with _memory_is_there(tensor):
            low, high = find_range(tensor)
            if tensor.numel() and is_finite(low, high):
                self._count(tensor, top_exponent(low, high))
        return self._range.add_range(low, high, tensor.numel())

    def statistics(self) -> TensorStatistics:
        """Statistics of all updates so far."""
        histogram, zeros = self._all()
        return replace(self._range.statistics(), zeros=zeros, histogram=histogram)

    def _count(self, tensor: torch.Tensor, top: int) -> None:
        # Below 2^-115 float32 has not the octaves of the table's bins: such values are sorted instead.
        if max(top, self._top) < SMALLEST_TOP:
            keys, counts, zeros = count_keys(tensor)
            self._settled = self._settled.merge(thin(keys, counts))
            self._zeros += zeros
            return
        if self._table is None or top > self._top:
            # The table's bins are those of the largest octave so far; what it holds becomes a histogram.
            self._settled, self._zeros = self._all()
            self._table, self._top = new_table(tensor.device), max(top, self._top)
        count_values(tensor, self._table, self._top)
        # ONNX Runtime reuses the tensor's memory for the next run and knows nothing of PyTorch's stream.
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()

    def _all(self) -> tuple[BitHistogram, int]:
        if self._table is None:
            return self._settled, self._zeros
        histogram, zeros = read_table(self._table.cpu().numpy(), self._top)
        return self._settled.merge(histogram), self._zeros + zeros


TORCH_COLLECTORS: dict[str, Callable[[], Collector]] = {
    "histogram": TorchHistogramCollector,
    "max": TorchMaxCollector,
}


@contextlib.contextmanager
def _memory_is_there(tensor: torch.Tensor) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeFailedError(
            f"the memory of '{tensor.device}' is full: a tensor of {tuple(tensor.shape)} cannot be counted",
            hint="pass a smaller --set data.batch_size, or free memory of the GPU",
        ) from error
