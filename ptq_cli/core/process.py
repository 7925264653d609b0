"""What only the command ``ptq`` may change in its process: logging, the standard streams, signals."""

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Exit statuses: as asked; then 128 and the signal's number, as a shell counts: of Ctrl-C and of SIGTERM.
DONE, INTERRUPTED, TERMINATED = 0, 130, 143
# Libraries whose logs of a damaged model would reach the terminal with the model's names as they are.
LIBRARIES = ("onnx_ir", "onnxscript")
STDOUT, STDERR = 1, 2
_OWN = [False]
_INTERRUPT = [INTERRUPTED]


def claim_process() -> None:
    """Say that this process is the command ``ptq``, and no program that imports ``ptq_cli``."""
    if not _OWN[0]:
        for name in LIBRARIES:
            # Without a handler of anybody, logging prints warnings itself.
            logging.getLogger(name).addHandler(logging.NullHandler())
    _OWN[0] = True


def is_own_process() -> bool:
    """Whether ``claim_process`` was called."""
    return _OWN[0]


class _Kept(io.BufferedWriter):
    """A stream whose reader may leave (``| head -1``): what nobody reads is dropped, and the work goes on."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            self._drop(error)
        return len(content)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        # A full disk behind stdout is told on stderr; one behind stderr cannot be told.
        if self.fileno() != STDERR and not isinstance(error, BrokenPipeError):
            raise error


def keep_streams() -> None:
    """Make stdout and stderr writable whatever is behind them: nothing (``>&-``), or a reader that leaves.

    So the command does its work, and its exit status says how that ended, whether anybody reads or not.
    """
    # A closed one's number would be given to the next file that is opened, and libraries print there.
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(number)
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        stream = getattr(sys, name)
        if stream is None or (stream is getattr(sys, f"__{name}__") and not stream.isatty()):
            encoding, errors = (stream.encoding, stream.errors) if stream is not None else ("utf-8", None)
            kept = _Kept(io.FileIO(number, "wb", closefd=False))
            setattr(sys, name, io.TextIOWrapper(kept, encoding, errors, line_buffering=True))


class _Signal(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. After KeyboardInterrupt itself Python may end by SIGINT, with no status of ours."""


def end_as_interrupted() -> None:
    """Let Ctrl-C and SIGTERM end the command in the same way, each with its exit status."""

    def end(number: int, frame: FrameType | None) -> None:
        if os.name == "posix" and _loads_a_library(frame):
            again = threading.Timer(0.05, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        _INTERRUPT[0] = 128 + number
        raise _Signal

    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) == usual:
            signal.signal(number, end)


def _loads_a_library(frame: FrameType | None) -> bool:
    """Whether a library such as PyTorch's is being loaded: its C++ code would abort at an exception."""
    while frame is not None and not frame.f_code.co_qualname.startswith("ExtensionFileLoader."):
        frame = frame.f_back
    return frame is not None


@contextmanager
def interrupts_as_requests() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C in the block be a request, which what is yielded tells; the second interrupts.

    In a program that imports ``ptq_cli``, and in other threads than the main one, nothing is changed.
    """
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_own_process() and is_main and callable(before)):
        yield lambda: False
        return

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_status() -> int:
    """The exit status of a command that was interrupted: 143 if by SIGTERM, otherwise 130."""
    return _INTERRUPT[0]


@contextmanager
def stdout_apart() -> Iterator[None]:
    """Send what a library prints on stdout to stderr inside the block: stdout is the result's."""
    if not is_own_process():  # The stdout of a program that imports ptq is its own.
        yield
        return
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    try:
        os.dup2(STDERR, STDOUT)
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
