"""The pieces of batches, in their order, worked on by several threads at once."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.runtime.tapping.forward import Forward, ForwardPass

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
