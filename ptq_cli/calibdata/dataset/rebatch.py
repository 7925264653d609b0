"""Turn batches of any sizes into batches of one size."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.selection import EVERY_BATCH, Selection
from ptq_cli.core.tensors import Array, along


def rebatch(
    batches: Generator[Batch], batch_size: int, selection: Selection = EVERY_BATCH
) -> Generator[Batch]:
    """Split and join batches so that each has ``batch_size`` samples.

    A batch is smaller if it is the last one, or if the next samples cannot be joined to it because their
    shapes, dtypes or names differ (such as texts that are padded batch by batch).

    Args:
        batches: of any sizes; closed at the end, also where the reader stops early.
        batch_size: samples per resulting batch.
        selection: which of the resulting batches are yielded; the values of the others are not copied.

    Example:
        >>> parts = (Batch({"": np.zeros((n, 2))}, None, ("s",) * n) for n in (3, 2))
        >>> [batch.size for batch in rebatch(parts, 2)]
        [2, 2, 1]
    """
    number = 0
    kept: _Begun | None = None
    with closing(batches) as given:
        for incoming in given:
            start = 0
            if kept is not None:
                if kept.fits(incoming):
                    start = min(batch_size - kept.size, incoming.size)
                    kept.add(cut(incoming, 0, start))
                if kept.size == batch_size or not start:
                    yield from kept.finish()
                    number, kept = number + 1, None
            while incoming.size - start >= batch_size:
                if number in selection:
                    yield cut(incoming, start, start + batch_size)
                number, start = number + 1, start + batch_size
            if start < incoming.size:
                kept = _Begun(cut(incoming, start, incoming.size), wanted=number in selection)
    if kept is not None:
        yield from kept.finish()


class _Begun:
    """A batch that is waiting for more samples; if it is not selected, only its size is counted."""

    def __init__(self, first: Batch, *, wanted: bool) -> None:
        self.size = first.size
        self._signature = _signature(first)
        # Copied, because the source may reuse its arrays for the next batch.
        self._parts = [_copy(first)] if wanted else []

    def fits(self, batch: Batch) -> bool:
        """Whether the samples of another batch can be joined to it."""
        return _signature(batch) == self._signature

    def add(self, batch: Batch) -> None:
        self.size += batch.size
        if self._parts:
            self._parts.append(_copy(batch))

    def finish(self) -> Iterator[Batch]:
        """Yield the batch if the selection holds it."""
        if self._parts:
            yield _join(self._parts)


def _signature(batch: Batch) -> tuple[object, ...]:
    arrays = sorted(
        (name, array.dtype.str, _apart(array, batch.axes.get(name, 0)))
        for name, array in batch.inputs.items()
    )
    labels = batch.labels
    return (*arrays, None if labels is None else (labels.dtype.str, labels.shape[1:]))


def _apart(array: Array, axis: int | None) -> tuple[object, ...]:
    """Return what arrays of two batches must have in common to be joined."""
    if axis is None:
        # It belongs to all samples of a batch, so it must be the same for both.
        return (array.shape, array.tobytes())
    return array.shape[:axis] + array.shape[axis + 1 :]


def _join(parts: Sequence[Batch]) -> Batch:
    first = parts[0]
    if len(parts) == 1:
        return first
    labels: Array | None = None
    if first.labels is not None:
        labels = np.concatenate([part.labels for part in parts if part.labels is not None])
    inputs = {
        name: joined([part.inputs[name] for part in parts], first.axes.get(name, 0)) for name in first.inputs
    }
    return Batch(inputs, labels, tuple(name for part in parts for name in part.names), first.axes)


def joined(arrays: Sequence[Array], axis: int | None) -> Array:
    """Return the samples of several arrays in one; without an axis of samples they are all the same.

    Example:
        >>> joined([np.zeros((2, 1)), np.zeros((2, 3))], 1).shape
        (2, 4)
    """
    return arrays[0] if axis is None else np.concatenate(arrays, axis)


def cut(batch: Batch, start: int, end: int) -> Batch:
    """Return the samples from ``start`` up to ``end``, as views.

    Example:
        >>> cut(Batch({"": np.arange(3)}, None, ("a", "b", "c")), 1, 3).inputs[""]
        array([1, 2])
    """
    if start == 0 and end == batch.size:
        return batch
    labels = None if batch.labels is None else batch.labels[start:end]
    inputs = {
        name: part_of(array, batch.axes.get(name, 0), start, end) for name, array in batch.inputs.items()
    }
    return Batch(inputs, labels, batch.names[start:end], batch.axes)


def part_of(array: Array, axis: int | None, start: int, end: int) -> Array:
    """Return a range of an array's samples, as a view; the array itself if it has no axis of samples.

    Example:
        >>> part_of(np.zeros((2, 5)), 1, 0, 3).shape, part_of(np.zeros((2, 5)), None, 0, 1).shape
        ((2, 3), (2, 5))
    """
    return array if axis is None else array[along(axis, start, end)]


def _copy(batch: Batch) -> Batch:
    labels = None if batch.labels is None else batch.labels.copy()
    return Batch(
        {name: array.copy() for name, array in batch.inputs.items()}, labels, batch.names, batch.axes
    )
