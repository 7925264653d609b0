"""Feed collectors from a running model: several pieces of the data are run and counted at once."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.collectors.collector_registry import SharedMemory, make_collector
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import NonFiniteActivationError
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.pipeline.calibration.count_batches import (
    AfterBatch,
    BatchReports,
    Checkpoints,
    count_batches,
    non_finite_error,
)
from ptq_cli.pipeline.calibration.pieces_ahead import Feeding, MakeCollector, Piece
from ptq_cli.runtime.tapping.forward import Forward, ForwardPass, Run, Tensor
from ptq_cli.runtime.tapping.tapped import Arrays

CalibrationCheckpoints = Checkpoints[TensorStatistics]
STAGE = "calibrate"


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
    checkpoints: CalibrationCheckpoints | None = None,
    initial: Mapping[str, TensorStatistics] | None = None,
    make_tapped: MakeCollector = make_collector,
    axes: Mapping[str, int] | None = None,
    allow_nonfinite: bool = False,
    nested: Collection[str] = (),
) -> tuple[dict[str, TensorStatistics], int]:
    """Run every batch and keep the statistics of the model's inputs and tapped tensors.

    Args:
        run: returns the tapped tensors of a batch, in the order of ``taps``; or how batches are run.
        batches: of the calibration set, keyed by the model's inputs; none of them is no error.
        inputs: which of the model's inputs are measured; they are read from the batch.
        taps: names of the tensors that ``run`` returns.
        method: the collector.
        threads: that run and count, at least 1; those that run no piece help to count. The result does not
            depend on it.
        prefetch: how many batches may be decoded before they are needed; 0 decodes in turn.
        total: how many samples there will be, if known.
        progress: is called before the first run, and after each batch.
        after_batch: is called after each batch, once all its tensors are counted.
        checkpoints: is given the statistics after a batch where it wants them.
        initial: statistics of batches that were counted before, which are merged with these.
        make_tapped: makes the collectors of the tapped tensors, which may be on a device; see ``counting``.
        axes: tensors of which each channel's statistics are kept besides, with their axis.
        allow_nonfinite: NaN and infinities are counted rather than refused.
        nested: tensors of nested graphs, whose values come on one axis, of all samples and steps.

    Returns:
        The statistics by tensor name, and how many samples were seen, those of ``initial`` not among them.

    Raises:
        NonFiniteActivationError: a tensor holds NaN or Inf; the message names the first such tensor in graph
            order and the sample.
        ActivationAxisError: a tensor does not have its axis, or not as many channels as before.
    """
    forward = run if isinstance(run, Forward) else Forward((ForwardPass(taps=tuple(taps), run=run),))
    axes = axes or {}
    makers = dict.fromkeys(inputs, make_collector) | dict.fromkeys(taps, make_tapped)
    feeding = Feeding(
        {
            name: make(method, name=name, axis=axes.get(name), allow_nonfinite=allow_nonfinite)
            for name, make in makers.items()
        }
    )
    reports = BatchReports(
        stage=STAGE, total=total, progress=progress, after_batch=after_batch, checkpoints=checkpoints
    )
    with _Work(forward, inputs, axes, feeding, threads, nested) as work:
        statistics, _, samples = count_batches(
            work, forward, batches, reports, prefetch=prefetch, initial=initial
        )
    return statistics, samples


class _Work:
    """Runs a piece and counts what it ran, in any of several threads."""

    def __init__(
        self,
        forward: Forward,
        inputs: Sequence[str],
        in_order: Collection[str],
        feeding: Feeding,
        threads: int,
        nested: Collection[str],
    ) -> None:
        self._inputs, self._nested = inputs, nested
        self._in_order = in_order
        self._feeding = feeding
        self._helpers = max(0, threads - forward.at_once)
        self._pool = ThreadPoolExecutor(max(1, self._helpers), "count")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def run_and_count(self, piece: Piece) -> NonFiniteActivationError | None:
        """Return what is wrong with the piece's tensors, if anything is."""
        arrays = piece.turn.run(piece.batch.inputs)
        measured = dict(zip(piece.turn.taps, arrays, strict=True))
        # A tensor may be in blocks of channels; where the channels do not matter, that is no matter.
        measured |= {name: piece.turn.in_model_order(name, measured[name]) for name in self._of_order(piece)}
        if piece.first:
            measured |= {name: piece.batch.inputs[name] for name in self._inputs}
        bad = self._feeding.count(measured, _shared(piece, arrays), self._pool, self._helpers)
        error = None
        if bad is not None:
            given = measured[bad]
            array = given if bad in self._in_order else piece.turn.in_model_order(bad, given)
            error = non_finite_error(bad, array, piece, is_nested=bad in self._nested)
        measured.clear()
        piece.turn.recycle(arrays)
        return error

    def statistics(self) -> dict[str, TensorStatistics]:
        return self._feeding.statistics()

    def _of_order(self, piece: Piece) -> Iterator[str]:
        return (name for name in piece.turn.taps if name in self._in_order)


def _shared(piece: Piece, arrays: Sequence[Tensor]) -> SharedMemory | None:
    if not isinstance(arrays, Arrays):
        return None
    spans = zip(piece.turn.taps, arrays.spans, strict=True)
    return SharedMemory(arrays.words, {name: span for name, span in spans if span is not None})
