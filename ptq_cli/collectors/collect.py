"""Feed collectors from a running model: what is counted, is run and is decoded overlap.

Each stage works on its own batch: one is counted while the next is run and another decoded. All that callers
are told, and all that can fail, comes in the order of the batches.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import prod

import numpy as np

from ptq_cli.calibdata.ahead import decoded_ahead
from ptq_cli.calibdata.batch import Batch
from ptq_cli.collectors.counting import MakeCollector
from ptq_cli.collectors.registry import Collector, make_collector
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.errors import NonFiniteActivationError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.forward import Forward, Pass, Piece, Run, Tensor, pieces, run_ahead

Snapshot = Callable[[], dict[str, TensorStatistics]]
AfterBatch = Callable[[int, int, Snapshot], None]
"""Is told how many batches and samples were counted, and can ask for the statistics so far."""


def collect(
    run: Run | Forward,
    batches: Iterable[Batch],
    *,
    inputs: Sequence[str],
    taps: Sequence[str],
    method: str,
    threads: int,
    total: int | None = None,
    prefetch: int = 0,
    progress: ProgressCallback = silent,
    after_batch: AfterBatch | None = None,
    initial: Mapping[str, TensorStatistics] | None = None,
    make_tapped: MakeCollector = make_collector,
    axes: Mapping[str, int] | None = None,
    allow_nonfinite: bool = False,
) -> tuple[dict[str, TensorStatistics], int]:
    """Run every batch and keep the statistics of the model's inputs and tapped tensors.

    Args:
        run: returns the tapped tensors of a batch, in the order of ``taps``; or how batches are run.
        batches: of the calibration set, keyed by the model's inputs; none of them is no error.
        inputs: which of the model's inputs are measured; they are read from the batch.
        taps: names of the tensors that ``run`` returns.
        method: the collector.
        threads: how many tensors are counted at once, at least 1; the result does not depend on it.
        prefetch: how many batches may be decoded before they are needed; 0 decodes in turn.
        total: how many samples there will be, if known.
        progress: is told after each batch.
        after_batch: is called after each batch, once all its tensors are counted.
        initial: statistics of batches that were counted before, which are merged with these.
        make_tapped: makes the collectors of the tapped tensors, which may be on a device; see ``counting``.
        axes: tensors of which each channel's statistics are kept besides, with their axis.
        allow_nonfinite: NaN and infinities are counted rather than refused.

    Returns:
        The statistics by tensor name, and how many samples were seen, those of ``initial`` not among them.

    Raises:
        NonFiniteActivationError: a tensor holds NaN or Inf; the message names the first such tensor in graph
            order and the sample.
        ActivationAxisError: a tensor does not have its axis, or not as many channels as before.
    """
    forward = run if isinstance(run, Forward) else Forward((Pass(tuple(taps), run),))
    axes = axes or {}
    makers = dict.fromkeys(inputs, make_collector) | dict.fromkeys(taps, make_tapped)
    collectors: dict[str, Collector] = {
        name: make(method, name=name, axis=axes.get(name), allow_nonfinite=allow_nonfinite)
        for name, make in makers.items()
    }
    number = samples = 0

    def snapshot() -> dict[str, TensorStatistics]:
        statistics = {name: collector.statistics() for name, collector in collectors.items()}
        if initial is None:
            return statistics
        return {name: item.merge(initial[name]) for name, item in statistics.items()}

    with (
        ThreadPoolExecutor(threads, "count") as pool,
        closing(decoded_ahead(batches, prefetch)) as decoded,
        closing(run_ahead(pieces(decoded, forward), forward)) as computed,
    ):
        for piece, arrays in computed:
            measured = dict(zip(piece.turn.taps, arrays, strict=True))
            if piece.first:
                measured |= {name: piece.batch.inputs[name] for name in inputs}
            _count(collectors, measured, piece, pool, threads, axes)
            measured.clear()
            piece.turn.recycle(arrays)
            del arrays
            samples += piece.batch.size if piece.done else 0
            if not piece.last:
                continue
            number += 1
            progress(Progress("calibrate", samples, total))
            if after_batch is not None:
                after_batch(number, samples, snapshot)
    return snapshot(), samples


def _count(
    collectors: Mapping[str, Collector],
    arrays: Mapping[str, Tensor],
    piece: Piece,
    pool: ThreadPoolExecutor,
    threads: int,
    axes: Collection[str],
) -> None:
    """Let each collector have its array, the largest first, as many at once as there are threads."""
    left = iter(sorted(arrays, key=lambda name: -prod(arrays[name].shape)))
    bad: list[str] = []

    def work() -> None:
        # Each tensor has its own collector, so that nothing is shared but the list of what is left to do.
        for name in left:
            # A tensor may be in blocks of channels; where the channels do not matter, that is no matter.
            array = piece.turn.in_model_order(name, arrays[name]) if name in axes else arrays[name]
            if not collectors[name].update(array):
                bad.append(name)

    workers = [pool.submit(work) for _ in range(min(threads, len(arrays)) - 1)]
    work()
    for worker in workers:
        worker.result()
    if bad:
        name = next(name for name in collectors if name in bad)  # the first in graph order
        raise _non_finite(name, piece.turn.in_model_order(name, arrays[name]), piece)


def _non_finite(name: str, array: Array, piece: Piece) -> NonFiniteActivationError:
    batch = piece.batch
    with np.errstate(over="ignore"):
        bad = np.argwhere(~np.isfinite(array.astype(np.float32)))[0]
    value, place = array[tuple(bad)], [int(index) for index in bad]
    where = f"the batch of '{batch.names[0]}'"
    if array.ndim > 0 and array.shape[0] == batch.size:
        where = f"sample '{batch.names[place[0]]}'"
        place[0] += piece.start
    return NonFiniteActivationError(
        f"tensor '{name}' is {value} at {place} for {where}",
        hint="the float model overflows or divides by zero there; mend the model or leave the sample out, "
        "or count such values with --allow-nonfinite",
    )
