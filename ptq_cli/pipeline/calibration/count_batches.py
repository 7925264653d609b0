"""Batches are run and counted, several pieces at once; callers are told of them in their order.

Each thread takes a piece through: it runs it, and counts what it ran while that is still in the processor's
cache. Meanwhile the next batch is decoded. All that callers are told, and all that can fail, comes in the
order of the batches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Protocol

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, decoded_ahead
from ptq_cli.collectors.calibration_file import Item
from ptq_cli.core.errors import NonFiniteActivationError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.pipeline.calibration.pieces_ahead import Piece, pieces, work_ahead
from ptq_cli.runtime.tapping.forward import Forward

AfterBatch = Callable[[int, int], None]
"""Is told how many batches and samples were counted."""


class Checkpoints(Protocol[Item]):
    """What keeps the statistics of the batches so far, now and then."""

    def is_due(self) -> bool:
        """Return whether the statistics after the batch that is begun last are wanted."""

    def write(self, batches: int, samples: int, snapshot: Callable[[], dict[str, Item]]) -> None:
        """Keep the statistics of so many batches and samples, and of no others: what ``snapshot`` gives."""


class PieceWork(Protocol[Item]):
    """Runs and counts pieces, in any of several threads."""

    def run_and_count(self, piece: Piece) -> NonFiniteActivationError | None:
        """Return what is wrong with the piece's tensors, if anything is."""

    def statistics(self) -> dict[str, Item]:
        """Return what was counted so far."""


@dataclass(frozen=True, kw_only=True)
class BatchReports(Generic[Item]):
    """Who is told of batches, and how.

    Attributes:
        stage: the name of what is done.
        total: how many samples there will be, if known.
        seen: samples that were counted before, and are part of the progress.
        progress: is called before the first run, and after each batch.
        after_batch: is called after each batch, once all its tensors are counted.
        checkpoints: is given the statistics after a batch where it wants them.
    """

    stage: str
    total: int | None = None
    seen: int = 0
    progress: ProgressCallback = silent
    after_batch: AfterBatch | None = None
    checkpoints: Checkpoints[Item] | None = None


def count_batches(
    work: PieceWork[Item],
    forward: Forward,
    batches: Iterable[Batch],
    reports: BatchReports[Item],
    *,
    prefetch: int = 0,
    initial: Mapping[str, Item] | None = None,
) -> tuple[dict[str, Item], int, int]:
    """Return what was counted of each tensor, and how many batches and samples were run.

    Args:
        work: runs and counts.
        forward: how batches are run.
        batches: of the data; none of them is no error.
        reports: who is told.
        prefetch: how many batches may be decoded before they are needed; 0 decodes in turn.
        initial: what was counted of batches before, which is merged with this.

    Raises:
        NonFiniteActivationError: a tensor holds NaN or Inf.
        PtqError: the data cannot be read, or the model cannot be run.
    """
    due = _Due(reports.checkpoints)
    number = samples = 0

    def snapshot() -> dict[str, Item]:
        found = work.statistics()
        return found if initial is None else {name: item.merge(initial[name]) for name, item in found.items()}

    def tell() -> None:
        reports.progress(Progress(reports.stage, reports.seen + samples, reports.total))

    with closing(decoded_ahead(batches, prefetch)) as decoded:
        # What may be done with batches is found out with the first one; not before that is there a piece.
        parts = _announced(pieces(decoded, forward), tell)
        with closing(work_ahead(parts, work.run_and_count, forward.at_once, due.after)) as worked:
            for piece, error in worked:
                if error is not None:
                    raise error
                samples += piece.batch.size if piece.done else 0
                if not piece.last:
                    continue
                number += 1
                tell()
                if reports.after_batch is not None:
                    reports.after_batch(number, samples)
                if reports.checkpoints is not None and piece is due.piece:
                    reports.checkpoints.write(number, samples, snapshot)
    return snapshot(), number, samples


class _Due(Generic[Item]):
    """Notes after which piece the statistics are wanted."""

    def __init__(self, checkpoints: Checkpoints[Item] | None) -> None:
        self._checkpoints = checkpoints
        self.piece: Piece | None = None

    def after(self, piece: Piece) -> bool:
        """Return whether they are wanted after a piece."""
        if piece.last and self._checkpoints is not None and self._checkpoints.is_due():
            self.piece = piece
        return piece is self.piece


def _announced(parts: Iterator[Piece], announce: Callable[[], None]) -> Iterator[Piece]:
    for index, piece in enumerate(parts):
        if not index:
            announce()
        yield piece


def non_finite_error(name: str, array: Array, piece: Piece, *, is_nested: bool) -> NonFiniteActivationError:
    """Return the error that says where a tensor of a piece first holds NaN or Inf.

    Args:
        name: of the tensor.
        array: its values, one of which is not finite.
        piece: that was run.
        is_nested: the tensor is in an If, Loop or Scan.
    """
    batch = piece.batch
    with np.errstate(over="ignore"):
        bad = np.argwhere(~np.isfinite(array.astype(np.float32)))[0]
    value, place = array[tuple(bad)], [int(index) for index in bad]
    where = f"the batch of '{batch.names[0]}'"
    if array.ndim > 0 and array.shape[0] == batch.size and not is_nested:
        where = f"sample '{batch.names[place[0]]}'"
        place[0] += piece.start
    # Values of a nested graph come on one axis, so that their place says nothing.
    at = "in an If, Loop or Scan" if is_nested else f"at {place}"
    return NonFiniteActivationError(
        f"tensor '{name}' is {value} {at} for {where}",
        hint="a weight of the float model is not finite, or it overflows or divides by zero there; fix the "
        "model, leave the sample out, or count such values with --set calibration.allow_nonfinite=true",
    )
