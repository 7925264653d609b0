"""What feeds the collectors: something that runs a batch and returns its tapped tensors."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ptq_cli.calibdata.batch import Batch
from ptq_cli.core.tensors import Array

Run = Callable[[Mapping[str, Array]], Sequence[Array]]


def whole(batch: Batch) -> Sequence[Batch]:
    """Return a batch as its only piece."""
    return (batch,)


def forget(arrays: Sequence[Array]) -> None:
    """Do nothing with arrays that are done with."""
    del arrays


def as_it_is(name: str, array: Array) -> Array:
    """Return an array as it is."""
    del name
    return array


@dataclass(frozen=True)
class Forward:
    """How batches are run.

    Attributes:
        run: returns the tapped tensors of a batch; from several threads at once where ``ahead`` is above 1.
        ahead: how many runs may be under way while the tensors of another are counted; 0 runs in turn.
        split: cuts a batch into the pieces that are run.
        recycle: takes arrays that ``run`` returned, once they are counted; their memory is used again.
        in_model_order: a tapped tensor, as ``run`` returned it, in the model's own shape and order.
    """

    run: Run
    ahead: int = 0
    split: Callable[[Batch], Sequence[Batch]] = whole
    recycle: Callable[[Sequence[Array]], None] = forget
    in_model_order: Callable[[str, Array], Array] = as_it_is


@dataclass(frozen=True)
class Piece:
    """Some samples of a batch.

    Attributes:
        batch: the samples.
        start: how many samples of the whole batch come before them.
        last: nothing of the whole batch comes after them.
    """

    batch: Batch
    start: int
    last: bool


def pieces(batches: Iterator[Batch], forward: Forward) -> Iterator[Piece]:
    """Yield the pieces of each batch, in order."""
    for batch in batches:
        start, parts = 0, forward.split(batch)
        for number, part in enumerate(parts, start=1):
            yield Piece(part, start, number == len(parts))
            start += part.size


def run_ahead(parts: Iterator[Piece], forward: Forward) -> Generator[tuple[Piece, Sequence[Array]]]:
    """Yield each piece with its tapped tensors, in order, while the next ones are run in other threads.

    Raises:
        PtqError: a run failed; the pieces before it were yielded.
    """
    if not forward.ahead:
        for piece in parts:
            yield piece, forward.run(piece.batch.inputs)
        return
    pending: list[tuple[Piece, Future[Sequence[Array]]]] = []
    with ThreadPoolExecutor(forward.ahead, "forward") as pool:
        try:
            for piece in parts:
                pending.append((piece, pool.submit(forward.run, piece.batch.inputs)))
                if len(pending) > forward.ahead:
                    yield _first(pending)
            while pending:
                yield _first(pending)
        finally:
            for _, future in pending:
                future.cancel()


def _first(pending: list[tuple[Piece, Future[Sequence[Array]]]]) -> tuple[Piece, Sequence[Array]]:
    piece, future = pending.pop(0)
    return piece, future.result()
