"""Batches decoded while the model runs the ones before them."""

import queue
import threading
from collections.abc import Generator, Iterable

from ptq_cli.calibdata.dataset.batches import Batch

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
