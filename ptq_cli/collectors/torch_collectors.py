"""Collectors for tensors on a device: they count there, by PyTorch; only counts come to the host.

The table and its bins are the same, so that the same values give the same statistics to the last bit. It is
arithmetic of integers on the bits of float32: a device that takes denormals for zeros counts them all the
same. A tensor is passed over in parts, so that what is needed besides it stays small.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from ptq_cli.collectors.histogram_collector import read_table
from ptq_cli.collectors.host_kernels import (
    COARSE_BINS,
    COARSE_START,
    EMPTY_RANGE,
    FLOAT_MANTISSA_BITS,
    LINEAR_BINS,
    MAGNITUDE,
    MANTISSA_BITS,
    SLOTS,
    SMALLEST_TOP,
    ZERO_SLOTS,
    ZERO_START,
)
from ptq_cli.collectors.max_collector import Collector, MaxCollector, is_finite, top_exponent
from ptq_cli.collectors.tensor_statistics import EMPTY, KEY_SHIFT, BitHistogram, TensorStatistics, thin
from ptq_cli.core.errors import RuntimeFailedError

PART_VALUES = 1 << 22  # Values of a part; it takes a dozen times 4 bytes of each besides.
KEY_MASK = (1 << (9 + MANTISSA_BITS)) - 1


def find_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The smallest and the largest value, as ``kernels.find_range`` does.

    Shapes: tensor: any.
    Edge case: Without values it is the range of nothing.

    Example:
        >>> find_range(torch.tensor([1.0, 0.0]))
        (0, 1065353216)
    """
    if not tensor.numel():
        return EMPTY_RANGE
    ends = []
    for part in _parts(tensor):
        bits = _bits(part)
        ends.append(torch.stack(torch.aminmax(bits ^ ((bits >> 31) & MAGNITUDE))))
    ranges = torch.stack(ends)
    # One transfer, which waits for the device.
    low, high = torch.stack((ranges[:, 0].min(), ranges[:, 1].max())).tolist()
    return int(low), int(high)


def new_table(device: torch.device) -> torch.Tensor:
    """An empty table on a device.

    Shapes: result: (12304,).
    """
    return torch.zeros(SLOTS, dtype=torch.int64, device=device)


def count_values(tensor: torch.Tensor, table: torch.Tensor, top: int) -> None:
    """Add finite values to the table's counts.

    Shapes: tensor: any. table: (12304,). top: the biased exponent of the largest octave, at least 12; none of
        the values is of a larger one.

    Example:
        >>> table = new_table(torch.device("cpu"))
        >>> count_values(torch.tensor([1.0, 1.0, 0.0]), table, 127)
        >>> int(table[2048]), int(table[ZERO_START:].sum())
        (2, 1)
    """
    for part in _parts(tensor):
        table += torch.bincount(_slots(_bits(part), top), minlength=SLOTS)


def _slots(bits: torch.Tensor, top: int) -> torch.Tensor:
    """Each value's slot: ``kernels.find_slots`` with a shift instead of the product."""
    magnitude = bits & MAGNITUDE
    exponent = magnitude >> FLOAT_MANTISSA_BITS
    mantissa = (magnitude & ((1 << FLOAT_MANTISSA_BITS) - 1)) | (1 << FLOAT_MANTISSA_BITS)
    # A shift by 32 or more is undefined; what lies so far below has a coarse bin.
    shift = (KEY_SHIFT + top - exponent).clamp_(max=31)
    linear = (mantissa >> shift) | ((bits >> 31) & LINEAR_BINS)
    coarse = COARSE_START + ((bits >> 20) & (COARSE_BINS - 1))
    slots = torch.where(exponent < top - 8, coarse, linear)
    # Many values on one slot wait for one another, on a GPU too.
    zeros = ZERO_START + (torch.arange(bits.numel(), dtype=torch.int32, device=bits.device) % ZERO_SLOTS)
    return torch.where(magnitude == 0, zeros, slots)


def count_keys(tensor: torch.Tensor) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], int]:
    """Each key that a value other than 0 has, how many values have it, and how many zeros there are.

    It is slower than ``count_values``, and needs no table: for tensors with tiny values only.

    Shapes: tensor: any. keys, counts: (N,), of which keys may repeat.

    Example:
        >>> keys, counts, zeros = count_keys(torch.tensor([1.0, 1.0, 0.0]))
        >>> keys.tolist() == [127 << 11], counts.tolist(), zeros
        (True, [2], 1)
    """
    keys, counts, zeros = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
    for part in _parts(tensor):
        bits = _bits(part)
        kept = bits[(bits & MAGNITUDE) != 0]
        found, times = torch.unique((kept >> KEY_SHIFT) & KEY_MASK, return_counts=True)
        keys.append(found.cpu().numpy().astype(np.uint32))
        counts.append(times.cpu().numpy())
        zeros += bits.numel() - kept.numel()
    return np.concatenate(keys), np.concatenate(counts), zeros


def _parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.split(tensor.reshape(-1), PART_VALUES)


def _bits(part: torch.Tensor) -> torch.Tensor:
    """Values as the bits of float32, with int32's sign."""
    return part.to(torch.float32).view(torch.int32)


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
        with memory_is_there(tensor):
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
        with memory_is_there(tensor):
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
def memory_is_there(tensor: torch.Tensor) -> Iterator[None]:
    """Say with a code that the memory beside a tensor did not suffice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeFailedError(
            f"the memory of '{tensor.device}' is full: a tensor of {tuple(tensor.shape)} cannot be counted",
            hint="pass a smaller --set data.batch_size, or free memory of the GPU",
        ) from error
