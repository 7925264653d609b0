"""Batches are decoded while the model runs the ones before them."""

import queue
import threading
from collections.abc import Generator, Iterable

from ptq_cli.calibdata.dataset.batch import Batch

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
