"""Batches, and streams of them: cut, joined, checked for NaN and Inf, decoded ahead, and those of one shard.

Shards get whole batches and never single samples: a shard runs exactly the batches that a single run would
have run, so its activations are the same to the last bit, even where a sum depends on the batch's size.
"""

import queue
import re
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from ptq_cli.core.errors import NonFiniteDataError, UsageError
from ptq_cli.core.tensors import Array


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, from 1 on: batch ``b``, counted from 0, is of ``b mod count + 1``."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


WHOLE = Shard()  # the single shard that holds every batch


@dataclass(frozen=True)
class Selection:
    """The batches of a shard, without its first ones.

    Attributes:
        done: how many batches at its start are left out.

    Example:
        >>> selection = Selection(Shard(2, 3), done=1)
        >>> [number for number in range(12) if number in selection]
        [4, 7, 10]
    """

    shard: Shard = WHOLE
    done: int = 0

    def __contains__(self, number: int) -> bool:
        turn, place = divmod(number, self.shard.count)
        return place == self.shard.number - 1 and turn >= self.done

    def samples(self, total: int, batch_size: int) -> int:
        """Return how many samples are selected from a data set with ``total`` samples."""
        first = (self.done * self.shard.count + self.shard.number - 1) * batch_size
        starts = range(first, total, self.shard.count * batch_size)
        # Only the last batch of the data set can be smaller.
        return batch_size * len(starts) - max(starts[-1] + batch_size - total, 0) if starts else 0


EVERY_BATCH = Selection()


def parse_shard(text: str) -> Shard:
    """Return the shard that ``--shard 2/8`` names."""
    hint = "--shard 2/8 is the second of eight"
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None:
        raise UsageError(f"--shard '{text[:40]}' is not of the form K/N", hint=hint)
    shard = Shard(int(match[1]), int(match[2]))
    if not shard.count:
        raise UsageError(f"there is no shard '{text}': the number of shards must be at least 1", hint=hint)
    if not 1 <= shard.number <= shard.count:
        raise UsageError(
            f"there is no shard '{text}': {shard.count} shards are numbered from 1 to {shard.count}",
            hint=hint,
        )
    return shard


@dataclass(frozen=True)
class Batch:
    """Samples that are run together.

    Attributes:
        inputs: arrays by name; the first axis of each is the sample, if ``axes`` names no other one.
        labels: the correct answer for each sample, such as its class, or None.
        names: what messages call each sample, such as ``cat/0001.jpg`` or ``calib.npz[17]``.
        axes: the axis of the samples of the arrays that have it elsewhere; None for an array that belongs to
            all samples together.

    Shapes:
        inputs: ``(size, ...)`` each, or with ``size`` on the axis that ``axes`` names.
        labels: ``(size, ...)``; for classes one whole number per sample.
    """

    inputs: dict[str, Array]
    labels: Array | None
    names: tuple[str, ...]
    axes: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def completes(self) -> bool:
        """Whether it is counted as a batch with those before that do: the steps of recordings are one."""
        return True

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.names)


@dataclass(frozen=True)
class StepBatch(Batch):
    """One step of several recordings.

    Attributes:
        step: its number, from 0 on.
        recordings: the number of each sample's recording in the data, from 0 on.
        is_last: whether these recordings end with it, and others follow.
    """

    step: int = 0
    recordings: tuple[int, ...] = ()
    is_last: bool = True

    @property
    def completes(self) -> bool:
        """Whether other recordings follow."""
        return self.is_last


def indexed_names(source: str, start: int, rows: int) -> tuple[str, ...]:
    """Name samples of a source that has no names of its own: ``calib.npz[17]``."""
    return tuple(f"{source}[{index}]" for index in range(start, start + rows))


def rebatch(
    batches: Generator[Batch], batch_size: int, selection: Selection = EVERY_BATCH
) -> Generator[Batch]:
    """Split and join batches so that each has ``batch_size`` samples.

    A batch is smaller if it is the last one, or if the next samples cannot be joined to it because their
    shapes, dtypes or names differ (such as texts that are padded batch by batch).

    ``batches`` is closed at the end, also where the reader stops early. The values of batches that are not
    selected are not copied.
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
    """Return a key that is the same for batches that can be joined."""
    arrays = []
    for name, array in sorted(batch.inputs.items()):
        axis = batch.axes.get(name, 0)
        # What belongs to all samples of a batch must be the same for both.
        apart = array.tobytes() if axis is None else array.shape[:axis] + array.shape[axis + 1 :]
        arrays.append((name, array.dtype.str, apart, None if axis is not None else array.shape))
    labels = batch.labels
    return (*arrays, None if labels is None else (labels.dtype.str, labels.shape[1:]))


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
    """Return the samples of several arrays in one; without an axis of samples they are all the same."""
    return arrays[0] if axis is None else np.concatenate(arrays, axis)


def first_samples(batches: Iterable[Batch], samples: int | None) -> Generator[Batch]:
    """Yield batches up to so many samples, the last of them cut; None for all."""
    for batch in batches:
        if samples is not None and batch.size >= samples:
            yield cut(batch, 0, samples)
            return
        yield batch
        samples = None if samples is None else samples - batch.size


def cut(batch: Batch, start: int, end: int) -> Batch:
    """Return the samples from ``start`` up to ``end``, as views."""
    if start == 0 and end == batch.size:
        return batch
    labels = None if batch.labels is None else batch.labels[start:end]
    inputs = {
        name: part_of(array, batch.axes.get(name, 0), start, end) for name, array in batch.inputs.items()
    }
    return replace(batch, inputs=inputs, labels=labels, names=batch.names[start:end])


def part_of(array: Array, axis: int | None, start: int, end: int) -> Array:
    """Return a range of an array's samples, as a view; the array itself if it has no axis of samples."""
    return array if axis is None else array[(*[slice(None)] * axis, slice(start, end))]


def _copy(batch: Batch) -> Batch:
    labels = None if batch.labels is None else batch.labels.copy()
    return Batch(
        {name: array.copy() for name, array in batch.inputs.items()}, labels, batch.names, batch.axes
    )


def require_finite(batch: Batch) -> None:
    """Refuse a batch with NaN or Inf; integers and booleans are always finite."""
    for name, array in batch.inputs.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum()):  # Then all values are, and this needs no temporary array.
                continue
        finite = np.isfinite(array)
        if finite.all():
            continue
        first = np.unravel_index(int(np.argmin(finite)), array.shape)
        inside, axis = [int(index) for index in first], batch.axes.get(name, 0)
        sample = inside.pop(axis) if axis is not None else 0
        raise NonFiniteDataError(
            f"input '{name}' holds {array[first]} at {inside} of sample '{batch.names[sample]}'",
            hint="fix the sample, remove it, or pass --set calibration.allow_nonfinite=true",
        )


def checked(batches: Generator[Batch]) -> Generator[Batch]:
    """Yield the batches, each of which has to be finite."""
    with closing(batches) as given:
        for batch in given:
            require_finite(batch)
            yield batch


_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_END = 1.0  # for a batch that is no longer needed; a callable may block for long


DECODED_AHEAD = 1  # batches: one thread decodes, and a batch may take as much memory as the model


def decoded_ahead(batches: Iterable[Batch], count: int = DECODED_AHEAD) -> Generator[Batch]:
    """Yield the same batches in the same order, up to ``count`` of them decoded before they are asked for.

    A thread of its own iterates, unless ``count`` is 0; what it has yielded must not change. What it raises
    comes after the batches before it.
    """
    if not count:
        yield from batches
        return
    waiting: queue.Queue[Batch | BaseException | None] = queue.Queue(count)
    stopped = threading.Event()
    thread = threading.Thread(target=_decode, args=(batches, waiting, stopped), name="decode", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        # Also where the reader stops early, because of an error or Ctrl-C.
        stopped.set()
        thread.join(_SECONDS_TO_END)


def _decode(
    batches: Iterable[Batch], waiting: "queue.Queue[Batch | BaseException | None]", stopped: threading.Event
) -> None:
    try:
        for batch in batches:
            _put(waiting, batch, stopped)
            if stopped.is_set():
                return
        _put(waiting, None, stopped)
    except BaseException as error:  # noqa: BLE001 - it is raised again by the reader
        _put(waiting, error, stopped)
    finally:
        if isinstance(batches, Generator):
            batches.close()  # Closes its files, in the thread that opened them.


def _put(
    waiting: "queue.Queue[Batch | BaseException | None]",
    item: Batch | BaseException | None,
    stopped: threading.Event,
) -> None:
    while not stopped.is_set():
        try:
            waiting.put(item, timeout=_SECONDS_BETWEEN_LOOKS)
        except queue.Full:
            continue
        return
