"""The collectors of a calibration, which several threads feed at once."""

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ptq_cli.collectors.collector import Collector
from ptq_cli.collectors.counted_together import SharedMemory, together
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics
from ptq_cli.runtime.tapping.forward import Tensor

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
