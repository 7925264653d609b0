"""Batches of any sizes become batches of one size."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.batch import Batch


def rebatch(batches: Iterable[Batch], batch_size: int) -> Iterator[Batch]:
    """Cut and join batches so that each has ``batch_size`` samples.

    A batch is smaller where it is the last, or where the next samples cannot be joined to it because their
    shapes, dtypes or names differ (texts that are padded batch by batch, say).

    Example:
        >>> parts = [Batch({"": np.zeros((n, 2))}, None, ("s",) * n) for n in (3, 2)]
        >>> [batch.size for batch in rebatch(parts, 2)]
        [2, 2, 1]
    """
    kept: Batch | None = None
    for incoming in batches:
        batch = incoming
        if kept is not None:
            if _signature(kept) == _signature(batch):
                batch = _join(kept, batch)
            else:
                yield kept
        start = 0
        while batch.size - start >= batch_size:
            yield cut(batch, start, start + batch_size)
            start += batch_size
        # Copied, because the source may reuse its arrays for what it yields next.
        kept = _copy(cut(batch, start, batch.size)) if start < batch.size else None
    if kept is not None:
        yield kept


def _signature(batch: Batch) -> tuple[object, ...]:
    arrays = sorted((name, array.dtype.str, array.shape[1:]) for name, array in batch.inputs.items())
    return (*arrays, batch.labels is None)


def _join(first: Batch, second: Batch) -> Batch:
    labels: npt.NDArray[np.int64] | None = None
    if first.labels is not None and second.labels is not None:
        labels = np.concatenate([first.labels, second.labels])
    inputs = {name: np.concatenate([array, second.inputs[name]]) for name, array in first.inputs.items()}
    return Batch(inputs, labels, first.names + second.names)


def cut(batch: Batch, start: int, end: int) -> Batch:
    """Return the samples from ``start`` up to ``end``, as views.

    Example:
        >>> cut(Batch({"": np.arange(3)}, None, ("a", "b", "c")), 1, 3).inputs[""]
        array([1, 2])
    """
    if start == 0 and end == batch.size:
        return batch
    labels = None if batch.labels is None else batch.labels[start:end]
    return Batch(
        {name: array[start:end] for name, array in batch.inputs.items()}, labels, batch.names[start:end]
    )


def _copy(batch: Batch) -> Batch:
    labels = None if batch.labels is None else batch.labels.copy()
    return Batch({name: array.copy() for name, array in batch.inputs.items()}, labels, batch.names)
