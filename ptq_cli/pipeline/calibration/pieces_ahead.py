"""The pieces of batches, in their order, worked on by several threads at once."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.collectors.collector_registry import Collector, SharedMemory, make_collector, together
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.runtime.machine import Device
from ptq_cli.runtime.tapping.forward import Forward, ForwardPass, Tensor

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some samples of a batch, in one of the passes.

    Attributes:
        batch: the samples.
        start: how many samples of the whole batch come before them.
        turn: the pass.
        first: it is their first pass.
        done: it is their last pass.
        last: and nothing of the whole batch comes after them.
    """

    batch: Batch
    start: int
    turn: ForwardPass
    first: bool
    done: bool
    last: bool


def pieces(batches: Iterator[Batch], forward: Forward) -> Iterator[Piece]:
    """Yield the pieces of each batch, in order, each once a pass."""
    first, final = forward.passes[0], forward.passes[-1]
    for batch in batches:
        start, parts = 0, forward.split(batch)
        for number, part in enumerate(parts, start=1):
            for turn in forward.passes:
                done = turn is final
                yield Piece(
                    batch=part,
                    start=start,
                    turn=turn,
                    first=turn is first,
                    done=done,
                    last=done and number == len(parts),
                )
            start += part.size


def work_ahead(
    parts: Iterator[Piece], work: Callable[[Piece], Result], at_once: int, stop_after: Callable[[Piece], bool]
) -> Generator[tuple[Piece, Result]]:
    """Yield each piece with what work on it returned, in order, while the next ones are worked on.

    Args:
        parts: the pieces; the next ones are asked for while others are worked on.
        work: runs in other threads, for as many pieces at once as ``at_once`` says; 1 works in turn, in this.
        at_once: as many threads.
        stop_after: is asked of each piece whether no later one may be begun before it was yielded.

    Raises:
        PtqError: the work on a piece failed; the pieces before it were yielded.
    """
    if at_once <= 1:
        for piece in parts:
            stop_after(piece)
            yield piece, work(piece)
        return
    pending: deque[tuple[Piece, Future[Result]]] = deque()
    with ThreadPoolExecutor(at_once, "forward") as pool:
        try:
            for piece in parts:
                pending.append((piece, pool.submit(work, piece)))
                # One more than are worked on, so that no thread has to wait for its next piece.
                limit = 0 if stop_after(piece) else at_once
                while len(pending) > limit:
                    yield _first(pending)
            while pending:
                yield _first(pending)
        finally:
            for _, future in pending:
                future.cancel()


def _first(pending: deque[tuple[Piece, Future[Result]]]) -> tuple[Piece, Result]:
    piece, future = pending.popleft()
    return piece, future.result()


# What counts: numba on the host's arrays, PyTorch on the tensors of a device.
#
# Both make collectors of the same kinds (``collectors.collector.Collector``), whose statistics have the
# same bytes for the same values. Whoever feeds them does not know which of the two they are.


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
    from ptq_cli.pipeline.calibration.device_collectors import make_torch_collector

    return make_torch_collector


# The collectors of a calibration, which several threads feed at once.


GROUPS = 16
"""Of fewer groups threads would wait for one another; more take more calls."""


class Feeding:
    """One collector for each tensor; no two threads feed the same one at the same time.

    One for each thread would need no locks, but as many times the memory: 50 kB for each tensor's histogram.
    Collectors are in groups, which have one lock each and are fed by one call where that is possible.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.collectors.collector_registry import make_collector
        >>> feeding = Feeding({"x": make_collector("max")})
        >>> with ThreadPoolExecutor(1) as pool:
        ...     feeding.count({"x": np.array([1.0, 3.0])}, None, pool, 0)
        >>> feeding.statistics()["x"].count
        2
    """

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = collectors
        simple = [name for name, collector in collectors.items() if together({name: collector})]
        # Neighbors in the graph, of about one size, come into different groups, so that those are alike.
        parts = [simple[first::GROUPS] for first in range(min(GROUPS, len(simple)))]
        parts += [[name] for name in collectors if name not in set(simple)]
        self._groups = [_Group({name: collectors[name] for name in part}) for part in parts]

    def count(
        self,
        arrays: Mapping[str, Tensor],
        shared: SharedMemory | None,
        pool: ThreadPoolExecutor,
        helpers: int,
    ) -> str | None:
        """Let each collector have its array; return the first, in graph order, that is not all finite.

        Args:
            arrays: by tensor name.
            shared: memory that some of them share, as their collectors want them; None if there is none.
            pool: of threads that help.
            helpers: how many of them may.
        """
        left = deque(self._groups)
        bad: set[str] = set()

        def work() -> None:
            # First what no other thread is busy with; then the rest, in turn.
            for wait in (False, True):
                for _ in range(len(left)):
                    try:
                        group = left.popleft()
                    except IndexError:  # Another thread that works here took it.
                        return
                    if not group.lock.acquire(blocking=wait):
                        left.append(group)
                        continue
                    try:
                        bad.update(group.feed(arrays, shared))
                    finally:
                        group.lock.release()

        workers = [pool.submit(work) for _ in range(min(helpers, len(arrays) - 1))]
        work()
        for worker in workers:
            worker.result()
        return next((name for name in self._collectors if name in bad), None)

    def statistics(self) -> dict[str, TensorStatistics]:
        """Return what was counted so far; nothing may be counted meanwhile."""
        return {name: collector.statistics() for name, collector in self._collectors.items()}


class _Group:
    """Collectors that one thread at a time feeds."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self.lock = threading.Lock()
        self._collectors = collectors
        self._together = together(collectors)

    def feed(self, arrays: Mapping[str, Tensor], shared: SharedMemory | None) -> list[str]:
        """Let each collector have its array, if there is one; return the names of those not all finite."""
        names = [name for name in self._collectors if name in arrays]
        bad: list[str] = []
        if shared is not None and self._together is not None:
            spans = {name: shared.spans[name] for name in names if name in shared.spans}
            bad = self._together.update(SharedMemory(shared.words, spans))
            names = [name for name in names if name not in spans]
        return bad + [name for name in names if not self._collectors[name].update(arrays[name])]
