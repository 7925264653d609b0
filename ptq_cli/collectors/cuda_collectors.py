"""Collectors of many tensors on a GPU: kernels of ours count a piece, and the host waits for it once.

``torch_collectors`` does the same with PyTorch alone, one tensor after the other. Which of them counts
changes no statistic; where the extra ``cuda`` is installed, this one does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from ptq_cli.collectors import cuda_kernels
from ptq_cli.collectors.collector_registry import COLLECTORS
from ptq_cli.collectors.cuda_kernels import (
    ALL_OCTAVES,
    COUNTED_SLOTS,
    EMPTY_PASS,
    HIGH,
    LOW,
    NAN,
    NEGATIVE,
    NO_OCTAVE,
    NO_TOP,
    POSITIVE,
    cuda,
)
from ptq_cli.collectors.histogram_collector import read_table
from ptq_cli.collectors.host_kernels import ZERO_SLOTS
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.collectors.tensor_statistics import ALL_FINITE, EMPTY, NonFinite, TensorStatistics
from ptq_cli.collectors.torch_collectors import memory_is_there
from ptq_cli.core.errors import DeviceError, first_line
from ptq_cli.core.words import require_known

THREADS = 512  # of a block: three or four of them, with 48 KiB each, fill a processor of a current GPU
BLOCKS_A_PROCESSOR = 4
LEAST_SHARE = 1 << 15  # values of a block, beside which its table of 12,288 slots is little work
LEAST_BLOCKS = 128  # of fewer numba warns; those that have nothing to do end at once
_LAYOUTS_KEPT = 8  # A run that binds its outputs once has its tensors at the same addresses again.

# How a type is read: its words, and what makes bits of float32 of them. Others become float32 before.
READ: dict[torch.dtype, tuple[np.dtype[Any], Any]] = {
    torch.float32: (np.dtype(np.int32), cuda_kernels.bits_of_float32),
    torch.float16: (np.dtype(np.uint16), cuda_kernels.bits_of_float16),
    torch.bfloat16: (np.dtype(np.uint16), cuda_kernels.bits_of_bfloat16),
    torch.float64: (np.dtype(np.int64), cuda_kernels.bits_of_float64),
}


@dataclass(frozen=True)
class Words:
    """Memory of a GPU from its first tensor to the end of its last, as other libraries are told of it."""

    address: int
    count: int
    dtype: np.dtype[Any]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = {"data": (self.address, False), "shape": (self.count,), "strides": None}
        return place | {"typestr": self.dtype.str, "version": 3}


def words_of(tensors: Sequence[torch.Tensor], dtype: np.dtype[Any]) -> tuple[Words, list[int]]:
    """The memory in which tensors lie, as words, and at which word each begins.

    Shapes: tensors: any, contiguous, of as many bytes a value as a word has.
    """
    places = [tensor.data_ptr() for tensor in tensors]
    first = min(places)
    last = max(place + t.numel() * dtype.itemsize for place, t in zip(places, tensors, strict=True))
    begins = [(place - first) // dtype.itemsize for place in places]
    return Words(first, (last - first) // dtype.itemsize, dtype), begins


def torch_device(number: int) -> torch.device:
    """PyTorch's name of a GPU."""
    return torch.device("cuda", number)


def view_of(memory: torch.Tensor | Words) -> Any:
    """Memory of a GPU as numba's array."""
    return cuda.as_cuda_array(memory)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where the tensors of one type lie, as a kernel is told of it.

    Attributes:
        read: the kernel of a pass over this type.
        arguments: ``memory``, ``begins``, ``starts`` and ``rows`` of ``pass_over``, and a block's share.
        rows: ``rows`` again, for ``settle``.
        tensors: how many there are.
        blocks: that have a share.
        kept: what holds the memory of these arguments.
    """

    read: Any
    arguments: tuple[Any, ...]
    rows: Any
    tensors: int
    blocks: int
    kept: torch.Tensor


class CudaCollectors:
    """Counts tensors on a device, by name, as the collectors of the host do.

    Attributes:
        names: of the tensors that it may be shown.
    """

    def __init__(
        self, names: Sequence[str], method: str, device: int = 0, *, allow_nonfinite: bool = False
    ) -> None:
        """Begin with nothing counted.

        Args:
            names: of the tensors.
            method: ``max`` or ``histogram``.
            device: the number of the GPU on which the tensors are.
            allow_nonfinite: count NaN and infinities, and the other values of a tensor that has some.
        """
        require_known("method", method, COLLECTORS)
        self.names = tuple(names)
        self._rows = {name: row for row, name in enumerate(names)}
        self._device, self._allows = torch_device(device), allow_nonfinite
        self._counts = method == "histogram"
        self._ranges = [MaxCollector() for _ in names]
        self._nonfinite = [ALL_FINITE for _ in names]
        number = len(names)
        slots = (number, COUNTED_SLOTS) if self._counts else (1, 1)
        self._select_device()
        self._tops = torch.full((number,), NO_TOP, dtype=torch.int32, device=self._device)
        self._floors = torch.zeros_like(self._tops)
        self._tables = torch.zeros(slots, dtype=torch.int64, device=self._device)
        self._nothing = torch.tensor([EMPTY_PASS] * number, dtype=torch.int64, device=self._device)
        self._found = self._nothing.clone()
        state = (self._floors, self._tops, self._tables, self._found)
        self._state = tuple(view_of(part) for part in state)
        self._layouts: dict[Any, _Layout] = {}

    def feed(self, arrays: Mapping[str, torch.Tensor], shared: object = None) -> list[str]:
        """Add the values of tensors; return the names of those that are not all finite, which add nothing.

        When it returns, the values have been read: their memory may be used again. ``shared`` is memory of
        the host, of which nothing is used here.

        Shapes: arrays: any; of any strides and types.

        Errors: ``RuntimeFailedError`` where the memory of the device is full.
        """
        del shared
        known = {name: arrays[name] for name in self.names if name in arrays and arrays[name].numel()}
        if not known:
            return []
        self._select_device()
        with memory_is_there(next(iter(known.values()))):
            return self._update({name: _readable(tensor) for name, tensor in known.items()})

    def statistics(self) -> dict[str, TensorStatistics]:
        """Statistics of all updates so far, by name."""
        found = {name: self._ranges[row].statistics() for name, row in self._rows.items()}
        found = {n: replace(item, nonfinite=self._nonfinite[self._rows[n]]) for n, item in found.items()}
        if not self._counts:
            return found
        tops, tables = self._tops.tolist(), self._tables.cpu().numpy()
        return {
            name: _with_histogram(item, tables[row], tops[row])
            for row, (name, item) in enumerate(found.items())
        }

    def _update(self, tensors: Mapping[str, torch.Tensor]) -> list[str]:
        self._found.copy_(self._nothing)
        self._floors.fill_(ALL_OCTAVES)
        dtypes = dict.fromkeys(tensor.dtype for tensor in tensors.values())
        layouts = [
            self._layout(dtype, {name: t for name, t in tensors.items() if t.dtype == dtype})
            for dtype in dtypes
        ]
        self._pass_over(layouts, 1)
        if self._counts:
            for layout in layouts:
                blocks = max(layout.tensors, LEAST_BLOCKS)
                cuda_kernels.settle[blocks, THREADS](layout.rows, *self._state, self._allows)
            self._pass_over(layouts, 1)
        # The only wait for the device: it has then read all tensors.
        found = self._found.tolist()
        bad = []
        for name, tensor in tensors.items():
            row = self._rows[name]
            nonfinite = NonFinite(found[row][NAN], found[row][POSITIVE], found[row][NEGATIVE])
            if nonfinite.total and not self._allows:
                bad.append(name)
                continue
            self._nonfinite[row] = self._nonfinite[row].merge(nonfinite)
            self._ranges[row].add_range(found[row][LOW], found[row][HIGH], tensor.numel() - nonfinite.total)
        if bad and self._counts:
            self._take_back(layouts, [self._rows[name] for name in bad])
        return bad

    def _take_back(self, layouts: Sequence[_Layout], rows: Sequence[int]) -> None:
        """Take from tables what the first pass added to them; a table with NaN was not made wider."""
        self._floors.fill_(NO_OCTAVE)
        self._floors[list(rows)] = ALL_OCTAVES
        self._pass_over(layouts, -1)
        self._floors.sum().item()  # waits, as the tensors are given back then

    def _pass_over(self, layouts: Sequence[_Layout], step: int) -> None:
        for layout in layouts:
            blocks = max(layout.blocks, LEAST_BLOCKS)
            layout.read[blocks, THREADS](*layout.arguments, step, *self._state)

    def _layout(self, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor]) -> _Layout:
        key = tuple((self._rows[name], t.data_ptr(), t.numel()) for name, t in tensors.items())
        found = self._layouts.get((dtype, key))
        if found is not None:
            return found
        if len(self._layouts) >= _LAYOUTS_KEPT:
            self._layouts.clear()
        self._layouts[dtype, key] = made = self._new_layout(dtype, tensors)
        return made

    def _new_layout(self, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor]) -> _Layout:
        number, sizes = len(tensors), [tensor.numel() for tensor in tensors.values()]
        words, bits_of = READ[dtype]
        memory, begins = words_of(list(tensors.values()), words)
        total = sum(sizes)
        blocks = max(1, min(self._processors() * BLOCKS_A_PROCESSOR, total // LEAST_SHARE))
        starts = np.concatenate([[0], np.cumsum(sizes)])
        table = np.concatenate([begins, [self._rows[name] for name in tensors], starts])
        kept = torch.from_numpy(table.astype(np.int64)).to(self._device)
        rows = view_of(kept[number : 2 * number])
        arguments = (
            view_of(memory),
            view_of(kept[:number]),
            view_of(kept[2 * number :]),
            rows,
            -(-total // blocks),
        )
        return _Layout(
            read=cuda_kernels.pass_over(bits_of, counts=self._counts),
            arguments=arguments,
            rows=rows,
            tensors=number,
            blocks=blocks,
            kept=kept,
        )

    def _processors(self) -> int:
        if self._device.type != "cuda":
            return 1
        return int(torch.cuda.get_device_properties(self._device).multi_processor_count)

    def _select_device(self) -> None:
        # Of the thread at hand, where it stays so: PyTorch and ONNX Runtime share numba's context.
        cuda.select_device(self._device.index or 0)


@cache
def require_kernels(device: int) -> None:
    """Check that the kernels can be compiled, and count on a GPU; once in a process.

    Errors: ``DeviceError`` where they cannot, or count wrongly.
    """
    try:
        collectors = CudaCollectors(["x"], "histogram", device)
        collectors.feed({"x": torch.tensor([0.0, 1.0, 1.0], device=torch_device(device))})
        found = collectors.statistics()["x"]
    except Exception as error:  # Those of numba's driver, compiler and linker share no base but Exception.
        raise DeviceError(
            f"the kernels of the extra 'cuda' cannot run on 'cuda:{device}': {first_line(error)}",
            hint="uninstall numba-cuda, and PyTorch counts; or install numba-cuda[cu13] for CUDA 13",
        ) from error
    if found.zeros != 1 or found.histogram is None or found.histogram.counts.tolist() != [2]:
        raise DeviceError(
            f"the kernels of the extra 'cuda' count wrongly on 'cuda:{device}'",
            hint="uninstall numba-cuda, and PyTorch counts; please report it",
        )


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose values lie side by side, of a type that kernels read."""
    return (tensor if tensor.dtype in READ else tensor.to(torch.float32)).contiguous()


def _with_histogram(found: TensorStatistics, table: Any, top: int) -> TensorStatistics:
    """Statistics with what a table holds; its zeros are the values that it does not.

    Shapes: table: (12288,).
    """
    if top == NO_TOP:
        return replace(found, zeros=0, histogram=EMPTY)
    zeros = np.zeros(ZERO_SLOTS, np.int64)
    zeros[0] = found.count - int(table.sum())
    histogram, counted = read_table(np.concatenate([table, zeros]), top)
    return replace(found, zeros=counted, histogram=histogram)
