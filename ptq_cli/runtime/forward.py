"""What feeds the collectors: something that runs a batch and returns its tapped tensors."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ptq_cli.calibdata.batch import Batch
from ptq_cli.core.tensors import Array

Tensor = Any
"""An array, or a tensor on the device that the model runs on; both have a ``shape``."""
Run = Callable[[Mapping[str, Array]], Sequence[Tensor]]


def whole(batch: Batch) -> Sequence[Batch]:
    """Return a batch as its only piece."""
    return (batch,)


def forget(arrays: Sequence[Tensor]) -> None:
    """Do nothing with arrays that are done with."""
    del arrays


def as_it_is(name: str, array: Array) -> Array:
    """Return an array as it is."""
    del name
    return array


@dataclass(frozen=True)
class Pass:
    """A run of the model that gives some of the tapped tensors.

    Attributes:
        taps: their names.
        run: returns them for a batch; from several threads at once where ``Forward.ahead`` is above 1.
        recycle: takes arrays that ``run`` returned, once they are counted; their memory is used again.
        in_model_order: a tapped tensor, as ``run`` returned it, on the host in the model's shape and order.
    """

    taps: tuple[str, ...]
    run: Run
    recycle: Callable[[Sequence[Tensor]], None] = forget
    in_model_order: Callable[[str, Tensor], Array] = as_it_is


@dataclass(frozen=True)
class Forward:
    """How batches are run.

    Attributes:
        passes: each piece takes all of them, one after the other; together they give all tapped tensors.
        ahead: how many runs may be under way while the tensors of another are counted; 0 runs in turn.
        split: cuts a batch into the pieces that are run.
    """

    passes: tuple[Pass, ...]
    ahead: int = 0
    split: Callable[[Batch], Sequence[Batch]] = whole


@dataclass(frozen=True)
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
    turn: Pass
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
                yield Piece(part, start, turn, turn is first, done, done and number == len(parts))
            start += part.size


def run_ahead(parts: Iterator[Piece], forward: Forward) -> Generator[tuple[Piece, Sequence[Tensor]]]:
    """Yield each piece with its tapped tensors, in order, while the next ones are run in other threads.

    Raises:
        PtqError: a run failed; the pieces before it were yielded.
    """
    if not forward.ahead:
        for piece in parts:
            yield piece, piece.turn.run(piece.batch.inputs)
        return
    pending: list[tuple[Piece, Future[Sequence[Tensor]]]] = []
    with ThreadPoolExecutor(forward.ahead, "forward") as pool:
        try:
            for piece in parts:
                pending.append((piece, pool.submit(piece.turn.run, piece.batch.inputs)))
                if len(pending) > forward.ahead:
                    yield _first(pending)
            while pending:
                yield _first(pending)
        finally:
            for _, future in pending:
                future.cancel()


def _first(pending: list[tuple[Piece, Future[Sequence[Tensor]]]]) -> tuple[Piece, Sequence[Tensor]]:
    piece, future = pending.pop(0)
    return piece, future.result()
