"""Batches are decoded while the model runs the ones before them."""

import queue
import threading
from collections.abc import Generator, Iterable

import numpy as np

from ptq_cli.calibdata.dataset.dataset import Batch
from ptq_cli.core.errors import NonFiniteDataError
from ptq_cli.core.tensors import Array

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_END = 1.0
"""Seconds to wait for a batch that is being decoded but no longer needed; a callable may block for long."""


def decoded_ahead(batches: Iterable[Batch], count: int) -> Generator[Batch]:
    """Yield the same batches in the same order, up to ``count`` of them decoded before they are asked for.

    Args:
        batches: iterated in a separate thread, unless ``count`` is 0; it must not change what it has yielded.
        count: how many batches may wait; each takes the memory of its inputs.

    Raises:
        BaseException: what iterating raised, after the batches that came before it.

    Example:
        >>> import numpy as np
        >>> parts = (Batch({"": np.full(1, n)}, None, ("s",)) for n in range(3))
        >>> [int(batch.inputs[""][0]) for batch in decoded_ahead(parts, 2)]
        [0, 1, 2]
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


# Find NaN and Inf in the data before the model runs on them.


def require_finite(batch: Batch) -> None:
    """Check that all floats of a batch are finite.

    Edge case:
        Integers and booleans are always finite.

    Raises:
        NonFiniteDataError: one is NaN or Inf; the message names the input, the sample and the index in it.

    Example:
        >>> require_finite(Batch({"x": np.array([[0.0], [np.nan]])}, None, ("x.npy[0]", "x.npy[1]")))
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.NonFiniteDataError: PTQ-DATA-008: input 'x' holds nan at [0] of sample 'x.npy[1]'
        hint: fix the sample, remove it, or pass --set calibration.allow_nonfinite=true
    """
    for name, array in batch.inputs.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        if _has_finite_sum(array):
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


def _has_finite_sum(array: Array) -> bool:
    """Tell whether the sum is finite: then all values are, and the test needs no temporary array."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()))
