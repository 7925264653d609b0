"""Feed collectors from a running model: one batch of tapped tensors at a time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ptq_cli.calibdata.batch import Batch
from ptq_cli.collectors.registry import Collector, make_collector
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.errors import NonFiniteActivationError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array

Run = Callable[[Mapping[str, Array]], Sequence[Array]]
Snapshot = Callable[[], dict[str, TensorStatistics]]
AfterBatch = Callable[[int, int, Snapshot], None]
"""Is told how many batches and samples were counted, and can ask for the statistics so far."""


def collect(
    run: Run,
    batches: Iterable[Batch],
    *,
    inputs: Sequence[str],
    taps: Sequence[str],
    method: str,
    threads: int,
    total: int | None = None,
    progress: ProgressCallback = silent,
    after_batch: AfterBatch | None = None,
    initial: Mapping[str, TensorStatistics] | None = None,
) -> tuple[dict[str, TensorStatistics], int]:
    """Run every batch and keep the statistics of the model's inputs and tapped tensors.

    Args:
        run: returns the tapped tensors of a batch, in the order of ``taps``.
        batches: of the calibration set, keyed by the model's inputs; none of them is no error.
        inputs: which of the model's inputs are measured; they are read from the batch.
        taps: names of the tensors that ``run`` returns.
        method: the collector.
        threads: how many tensors are counted at once, at least 1; the result does not depend on it.
        total: how many samples there will be, if known.
        progress: is told after each batch.
        after_batch: is called after each batch, once all its tensors are counted.
        initial: statistics of batches that were counted before, which are merged with these.

    Returns:
        The statistics by tensor name, and how many samples were seen, those of ``initial`` not among them.

    Raises:
        NonFiniteActivationError: a tensor holds NaN or Inf; the message names the first such tensor in graph
            order and the sample.
    """
    collectors: dict[str, Collector] = {name: make_collector(method) for name in (*inputs, *taps)}
    samples = 0

    def snapshot() -> dict[str, TensorStatistics]:
        statistics = {name: collector.statistics() for name, collector in collectors.items()}
        if initial is None:
            return statistics
        return {name: item.merge(initial[name]) for name, item in statistics.items()}

    with ThreadPoolExecutor(threads) as pool:
        for number, batch in enumerate(batches, start=1):
            _count_batch(run, batch, inputs, collectors, pool)
            samples += batch.size
            progress(Progress("calibrate", samples, total))
            if after_batch is not None:
                after_batch(number, samples, snapshot)
    return snapshot(), samples


def _count_batch(
    run: Run,
    batch: Batch,
    inputs: Sequence[str],
    collectors: Mapping[str, Collector],
    pool: ThreadPoolExecutor,
) -> None:
    # A function of its own, so that the tensors are gone before the next batch makes its own.
    arrays = [*(batch.inputs[name] for name in inputs), *run(batch.inputs)]
    # Each tensor has its own collector, so that tensors are counted side by side without sharing anything.
    updates = pool.map(lambda collector, array: collector.update(array), collectors.values(), arrays)
    for name, array, finite in zip(collectors, arrays, updates, strict=True):
        if not finite:
            raise _non_finite(name, array, batch)


def _non_finite(name: str, array: Array, batch: Batch) -> NonFiniteActivationError:
    with np.errstate(over="ignore"):
        bad = np.argwhere(~np.isfinite(array.astype(np.float32)))[0]
    value = array[tuple(bad)]
    by_sample = array.ndim > 0 and array.shape[0] == batch.size
    where = f"sample '{batch.names[bad[0]]}'" if by_sample else f"the batch of '{batch.names[0]}'"
    return NonFiniteActivationError(
        f"tensor '{name}' is {value} at {[int(index) for index in bad]} for {where}",
        hint="the float model overflows or divides by zero there; mend the model or leave the sample out",
    )
