"""Batches are run and counted, several pieces at once; callers are told of them in their order.

Each thread takes a piece through: it runs it, and counts what it ran while that is still in the processor's
cache. Meanwhile the next batch is decoded. All that callers are told, and all that can fail, comes in the
order of the batches.
"""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, decoded_ahead
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import NonFiniteActivationError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.tapping.pieces import Forward, ForwardPass

CALIBRATE_STAGE = "calibrate"
_Result = TypeVar("_Result")
Statistics = dict[str, TensorStatistics]
AfterBatch = Callable[[int, int], None]  # is told how many batches and samples were counted


class _Checkpoints(Protocol):
    """What keeps the statistics of the batches so far, now and then."""

    def is_due(self) -> bool:
        """Whether the statistics after the batch that is begun last are wanted."""

    def write(self, batches: int, samples: int, snapshot: Callable[[], Statistics]) -> None:
        """Keep the statistics of so many batches and samples, and of no others: what ``snapshot`` gives."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some samples of a batch, in one of the passes.

    Attributes:
        start: how many samples of the whole batch come before them.
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
    parts: Iterator[Piece],
    work: Callable[[Piece], _Result],
    at_once: int,
    stop_after: Callable[[Piece], bool],
) -> Generator[tuple[Piece, _Result]]:
    """Yield each piece with what work on it returned, in order, while the next ones are worked on.

    As many threads work as ``at_once`` says; 1 works in turn, in this one. ``stop_after`` is asked of each
    piece whether no later one may be begun before it was yielded.
    """
    if at_once <= 1:
        for piece in parts:
            stop_after(piece)
            yield piece, work(piece)
        return
    pending: deque[tuple[Piece, Future[_Result]]] = deque()
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


def _first(pending: deque[tuple[Piece, Future[_Result]]]) -> tuple[Piece, _Result]:
    piece, future = pending.popleft()
    return piece, future.result()


@dataclass(frozen=True, kw_only=True)
class Counting:
    """How a calibration set is counted.

    Attributes:
        total: number of samples, if known.
        seen: samples that were counted before, and are part of the progress.
        after_batch: is called after each batch, once all its tensors are counted.
        checkpoints: is given the statistics after a batch where it wants them.
        initial: what was counted of batches before, which is merged with this.
    """

    total: int | None = None
    progress: ProgressCallback = silent
    seen: int = 0
    after_batch: AfterBatch | None = None
    checkpoints: _Checkpoints | None = None
    initial: Statistics | None = None


def count_batches(
    run_and_count: Callable[[Piece], NonFiniteActivationError | None],
    statistics: Callable[[], Statistics],
    forward: Forward,
    batches: Iterable[Batch],
    counting: Counting,
) -> tuple[Statistics, int, int]:
    """Statistics of each tensor, and how many batches and samples were run.

    Threads call ``run_and_count``, which returns what is wrong with a piece's tensors, if anything is.
    """
    number = samples = 0
    due: Piece | None = None
    checkpoints, initial = counting.checkpoints, counting.initial

    def snapshot() -> Statistics:
        found = statistics()
        return found if initial is None else {name: item.merge(initial[name]) for name, item in found.items()}

    def tell() -> None:
        seen, total = counting.seen, counting.total
        counting.progress(
            Progress(CALIBRATE_STAGE, seen + samples, seen + total if total is not None else None)
        )

    def is_due_after(piece: Piece) -> bool:
        nonlocal due
        if piece.last and piece.batch.completes and checkpoints is not None and checkpoints.is_due():
            due = piece
        return piece is due

    with closing(decoded_ahead(batches)) as decoded:
        # What may be done with batches is found out with the first one; not before that is there a piece.
        parts = pieces(decoded, forward)
        begun = list(itertools.islice(parts, 1))
        if begun:
            tell()
        rest = itertools.chain(begun, parts)
        with closing(work_ahead(rest, run_and_count, forward.at_once, is_due_after)) as worked:
            for piece, error in worked:
                if error is not None:
                    raise error
                samples += piece.batch.size if piece.done else 0
                if not piece.last:
                    continue
                tell()
                if not piece.batch.completes:
                    continue
                number += 1
                if counting.after_batch is not None:
                    counting.after_batch(number, samples)
                if checkpoints is not None and piece is due:
                    checkpoints.write(number, samples, snapshot)
    return snapshot(), number, samples


def non_finite_error(name: str, array: Array, piece: Piece, *, is_nested: bool) -> NonFiniteActivationError:
    """The error that says where a tensor of a piece first holds NaN or Inf."""
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
