"""The collectors of a calibration, which several threads feed at once."""

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod

from ptq_cli.collectors.collector import Collector
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics
from ptq_cli.runtime.forward import Tensor


class Feeding:
    """One collector for each tensor; no two threads feed the same one at the same time.

    One for each thread would need no locks, but as many times the memory: 50 kB for each tensor's histogram.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.collectors.collector_registry import make_collector
        >>> feeding = Feeding({"x": make_collector("max")})
        >>> with ThreadPoolExecutor(1) as pool:
        ...     feeding.count({"x": np.array([1.0, 3.0])}, pool, 0)
        >>> feeding.statistics()["x"].count
        2
    """

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self._collectors = collectors
        self._locks = {name: threading.Lock() for name in self._collectors}

    def count(self, arrays: Mapping[str, Tensor], pool: ThreadPoolExecutor, helpers: int) -> str | None:
        """Let each collector have its array; return the first, in graph order, that is not all finite.

        Args:
            arrays: by tensor name.
            pool: of threads that help.
            helpers: how many of them may.
        """
        left = deque(sorted(arrays, key=lambda name: -prod(arrays[name].shape)))  # The largest first.
        bad: set[str] = set()

        def work() -> None:
            # First what no other thread is busy with; then the rest, in turn.
            for wait in (False, True):
                for _ in range(len(left)):
                    try:
                        name = left.popleft()
                    except IndexError:  # Another thread that works here took it.
                        return
                    if not self._locks[name].acquire(blocking=wait):
                        left.append(name)
                        continue
                    try:
                        if not self._collectors[name].update(arrays[name]):
                            bad.add(name)
                    finally:
                        self._locks[name].release()

        workers = [pool.submit(work) for _ in range(min(helpers, len(arrays) - 1))]
        work()
        for worker in workers:
            worker.result()
        return next((name for name in self._collectors if name in bad), None)

    def statistics(self) -> dict[str, TensorStatistics]:
        """Return what was counted so far; nothing may be counted meanwhile."""
        return {name: collector.statistics() for name, collector in self._collectors.items()}
