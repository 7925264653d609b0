"""Collectors fed from a running model: several pieces of the data are run and counted at once.

Numba counts the host's arrays; kernels of ours count the tensors of a device where the extra ``cuda`` is
installed, and PyTorch where it is not. All have the same statistics, byte for byte, of the same values.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibration.count_batches import Counting, Piece, Statistics, count_batches, non_finite_error
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.histogram_collector import SharedMemory, together
from ptq_cli.collectors.max_collector import Collector
from ptq_cli.core.errors import NonFiniteActivationError, RuntimeFailedError
from ptq_cli.core.words import require_known
from ptq_cli.runtime import cuda
from ptq_cli.runtime.machine import Device
from ptq_cli.runtime.session import is_memory_full
from ptq_cli.runtime.tapping.pieces import Forward, ForwardPass, RunTapped, Tensor
from ptq_cli.runtime.tapping.tapped import TappedArrays


class CollectorGroup(Protocol):
    """Collectors that one thread at a time feeds."""

    @property
    def names(self) -> Sequence[str]:
        """Of their tensors."""

    def feed(self, arrays: Mapping[str, Tensor], shared: SharedMemory | None) -> Sequence[str]:
        """Let each collector have its array, if there is one; return the names of those not all finite."""

    def statistics(self) -> Statistics:
        """The statistics so far, by name."""


# Of names and a method; the last says whether values that are not finite are counted rather than refused.
MakeGroups = Callable[[Sequence[str], str, bool], Sequence[CollectorGroup]]


def counting_on(device: Device) -> MakeGroups:
    """What makes the collectors of tensors on a device."""
    if device.is_host:
        return host_groups
    if not cuda.has_kernel_compiler():
        return torch_groups
    from ptq_cli.collectors.cuda_collectors import CudaCollectors, require_kernels

    require_kernels(device.number)

    def cuda_groups(names: Sequence[str], method: str, allow_nonfinite: bool) -> Sequence[CollectorGroup]:
        one = partial(CudaCollectors, names, method, device.number, allow_nonfinite=allow_nonfinite)
        return [one()] if names else []

    return cuda_groups


def make_torch_collector(method: str, *, allow_nonfinite: bool = False) -> Collector:
    """A new collector for tensors on a device; values that need not be finite are counted on the host."""
    from ptq_cli.collectors.torch_collectors import TORCH_COLLECTORS

    require_known("method", method, TORCH_COLLECTORS)
    if not allow_nonfinite:
        return TORCH_COLLECTORS[method]()
    return _OnHost(make_collector(method, allow_nonfinite=allow_nonfinite))


class _OnHost:
    """Counts on the host what is on a device."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.statistics = collector.statistics

    def update(self, tensor: Tensor) -> bool:
        from ptq_cli.runtime.tapping.on_device import as_array

        return self._collector.update(tensor if isinstance(tensor, np.ndarray) else as_array(tensor))


_GROUPS = 16  # of collectors: of fewer, threads would wait for one another; more take more calls


def host_groups(names: Sequence[str], method: str, allow_nonfinite: bool = False) -> Sequence[CollectorGroup]:
    """Collectors for arrays, in groups that are fed by one call where that is possible.

    Neighbors in the graph, of about one size, come into different groups, so that those are alike.
    """
    collectors = {name: make_collector(method, allow_nonfinite=allow_nonfinite) for name in names}
    # All are of one kind, so that one tells; of none there is nothing to join.
    if together(dict(list(collectors.items())[:1])) is None:
        return [HostCollectors({name: collector}) for name, collector in collectors.items()]
    parts = [names[first::_GROUPS] for first in range(min(_GROUPS, len(names)))]
    return [HostCollectors({name: collectors[name] for name in part}) for part in parts]


def torch_groups(
    names: Sequence[str], method: str, allow_nonfinite: bool = False
) -> Sequence[CollectorGroup]:
    """Collectors for tensors on a device, which PyTorch counts."""
    return [
        HostCollectors({name: make_torch_collector(method, allow_nonfinite=allow_nonfinite)})
        for name in names
    ]


class HostCollectors:
    """Collectors that are called one by one, or all by one call if they can be."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self.names = tuple(collectors)
        self._collectors = collectors
        self._together = together(collectors)

    def feed(self, arrays: Mapping[str, Tensor], shared: SharedMemory | None) -> Sequence[str]:
        """Let each collector have its array, if there is one; return the names of those not all finite."""
        names = [name for name in self.names if name in arrays]
        bad: list[str] = []
        if shared is not None and self._together is not None:
            spans = {name: shared.spans[name] for name in names if name in shared.spans}
            bad = self._together.update(SharedMemory(shared.words, spans))
            names = [name for name in names if name not in spans]
        return bad + [name for name in names if not self._collectors[name].update(arrays[name])]

    def statistics(self) -> Statistics:
        """The statistics so far, by name."""
        return {name: collector.statistics() for name, collector in self._collectors.items()}


class Feeding:
    """Groups of collectors; no two threads feed the same one at the same time.

    One collector of a tensor for each thread would need no locks, but as many times the memory: 50 kB for
    each tensor's histogram.
    """

    def __init__(self, groups: Sequence[CollectorGroup], names: Sequence[str]) -> None:
        """Take the groups that have the collectors of so many ``names``, in whose order it tells of them."""
        self._groups = [(group, threading.Lock()) for group in groups]
        self._names = names

    def count(
        self,
        arrays: Mapping[str, Tensor],
        shared: SharedMemory | None,
        pool: ThreadPoolExecutor,
        helpers: int,
    ) -> str | None:
        """Let each collector have its array; return the first, in their order, that is not all finite.

        ``shared`` is memory that some arrays share, as their collectors want them; so many ``helpers`` of the
        pool may help.
        """
        left = deque(self._groups)
        bad: set[str] = set()

        def work() -> None:
            # First what no other thread is busy with; then the rest, in turn.
            for wait in (False, True):
                for _ in range(len(left)):
                    try:
                        group, lock = left.popleft()
                    except IndexError:  # Another thread that works here took it.
                        return
                    if not lock.acquire(blocking=wait):
                        left.append((group, lock))
                        continue
                    try:
                        bad.update(group.feed(arrays, shared))
                    finally:
                        lock.release()

        workers = [pool.submit(work) for _ in range(min(helpers, len(arrays) - 1))]
        work()
        for worker in workers:
            worker.result()
        return next((name for name in self._names if name in bad), None)

    def statistics(self) -> Statistics:
        """The statistics so far; nothing may be counted meanwhile."""
        found = {name: item for group, _ in self._groups for name, item in group.statistics().items()}
        return {name: found[name] for name in self._names}


@dataclass(frozen=True, kw_only=True)
class CountedTensors:
    """Which tensors are counted, and how.

    Attributes:
        inputs: are read from the batch.
        taps: are what the model gives, in this order.
        nested: come on one axis, of all samples and steps.
        make_tapped: makes the collectors of the tapped tensors, which may be on a device.
    """

    inputs: Sequence[str]
    taps: Sequence[str]
    method: str
    nested: Collection[str] = ()
    allow_nonfinite: bool = False
    make_tapped: MakeGroups = host_groups

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tensors, in the order in which they are told of."""
        return (*self.inputs, *self.taps)

    def groups(self) -> Sequence[CollectorGroup]:
        """New collectors of all tensors."""
        if self.make_tapped is host_groups:
            return host_groups(self.names, self.method, self.allow_nonfinite)
        inputs = host_groups(self.inputs, self.method, self.allow_nonfinite)
        return [*inputs, *self.make_tapped(self.taps, self.method, self.allow_nonfinite)]


def collect(
    run: RunTapped | Forward,
    batches: Iterable[Batch],
    tensors: CountedTensors,
    threads: int,
    counting: Counting = Counting(),
) -> tuple[Statistics, int, int]:
    """Run every batch and keep the statistics of the tensors; return them, and the batches and samples.

    ``run`` returns the tapped tensors in their order, or is how batches are run. No number of ``threads``
    changes the result.
    """
    forward = run if isinstance(run, Forward) else Forward((ForwardPass(taps=tuple(tensors.taps), run=run),))
    feeding = Feeding(tensors.groups(), tensors.names)
    with _Work(forward, tensors, feeding, threads) as work:
        return count_batches(work.run_and_count, feeding.statistics, forward, batches, counting)


class _Work:
    """Runs a piece and counts what it ran, in any of several threads."""

    def __init__(self, forward: Forward, tensors: CountedTensors, feeding: Feeding, threads: int) -> None:
        self._tensors, self._feeding = tensors, feeding
        self._helpers = max(0, threads - forward.at_once)
        self._smaller = forward.smaller
        self._pool = ThreadPoolExecutor(max(1, self._helpers), "count")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run_and_count(self, piece: Piece) -> NonFiniteActivationError | None:
        """Run and count a piece; return the error of its first tensor that is not finite."""
        turn = piece.turn
        try:
            arrays = turn.run(piece.batch.inputs)
        except RuntimeFailedError as failed:
            parts = self._smaller(piece.batch) if is_memory_full(failed) else ()
            if len(parts) < 2:
                raise
            return self._in_parts(piece, parts)
        measured = dict(zip(turn.taps, arrays, strict=True))
        if piece.first:
            measured |= {name: piece.batch.inputs[name] for name in self._tensors.inputs}
        bad = self._feeding.count(measured, _shared(turn.taps, arrays), self._pool, self._helpers)
        error = None
        if bad is not None:
            # It may be in blocks of channels, whose order changes no statistics.
            array = turn.in_model_order(bad, measured[bad])
            error = non_finite_error(bad, array, piece, is_nested=bad in self._tensors.nested)
        measured.clear()
        turn.recycle(arrays)
        return error

    def _in_parts(self, piece: Piece, parts: Sequence[Batch]) -> NonFiniteActivationError | None:
        start = piece.start
        for part in parts:
            error = self.run_and_count(replace(piece, batch=part, start=start))
            if error is not None:
                return error
            start += part.size
        return None


def _shared(taps: Sequence[str], arrays: Sequence[Tensor]) -> SharedMemory | None:
    if not isinstance(arrays, TappedArrays):
        return None
    spans = zip(taps, arrays.spans, strict=True)
    return SharedMemory(arrays.words, {name: span for name, span in spans if span is not None})
