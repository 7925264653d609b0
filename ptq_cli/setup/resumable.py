"""What an interrupted command continues from: one file, written once it is due, and discarded at the end.

It is written to a temporary name and renamed, so there is always a whole one; where that fails, the last good
one stays and the work continues.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ptq_cli.core.errors import OutputFileError, PtqError
from ptq_cli.core.files import PARTIAL_SUFFIX

Tell = Callable[[str], None]
_Found = TypeVar("_Found")
NO_CHECKPOINTS = "no checkpoints are written: the data is a Python object, which cannot be recognized later"


class Checkpoints:
    """Writes the checkpoints of some work.

    At least ``every`` seconds lie between them; 0 writes one after each batch.
    """

    def __init__(
        self, path: Path, work: str, every: float, tell: Tell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._work, self._tell = path, work, tell
        self._schedule = Schedule(every, clock)
        self.is_due = self._schedule.is_due

    def write(self, save: Callable[[Path], None]) -> None:
        """Write a checkpoint with a function that does so atomically, or tell that it cannot be written."""
        with self._schedule.writing():
            try:
                save(self._path)
            except OutputFileError as error:
                kept = "; the last one is kept" if self._path.is_file() else ""
                self._tell(f"no checkpoint was written{kept}, the {self._work} continues: {error.message}")


def read_checkpoint(
    path: Path, work: str, read: Callable[[Path], _Found], refusal: Callable[[_Found], str], tell: Tell
) -> _Found | None:
    """The checkpoint of this very work, or None.

    ``refusal`` says why it is not of this work, with an empty text if it is; ``tell`` hears why one is
    ignored.
    """
    if not path.is_file():
        return None
    # Whatever is wrong with a checkpoint costs time and not the run: it is told, and the work starts over.
    try:
        found = read(path)
    except PtqError as error:
        reason = error.message
    else:
        reason = refusal(found)
        if not reason:
            return found
    tell(f"not continuing the earlier {work} in '{path}', but starting again: {reason}")
    return None


def continued(
    path: Path,
    work: str,
    read: Callable[[Path], _Found],
    refusal: Callable[[_Found], str],
    done: Callable[[_Found], str],
    tell: Tell,
) -> _Found | None:
    """Read the checkpoint of this very work, and tell how much was ``done``, such as ``12 samples``."""
    found = read_checkpoint(path, work, read, refusal, tell)
    if found is not None:
        tell(f"continuing an earlier {work} after {done(found)}; --set run.restart=true starts again")
    return found


def changed_since(earlier: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say which part of an identity a checkpoint had otherwise; an empty text if none."""
    return next((f"{key} changed since" for key in now if earlier.get(key) != now[key]), "")


def discard_checkpoint(path: Path) -> None:
    """Remove a checkpoint, and what a killed process left of one that it was writing.

    What cannot be removed stays: the next run finds it to be finished, and so loses nothing.
    """
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        for leftover in path.parent.glob(f".{path.name}.*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)


# Largest share of the time for writing checkpoints; where it would be more, they are written less often.
COST_LIMIT = 0.01


class Schedule:
    """Tells when a checkpoint is due: every so many seconds, but without taking more than 1 % of the time.

    Example:
        >>> seconds = iter([0.0, 5.0, 30.0, 30.0, 31.0, 60.0])
        >>> schedule = Schedule(30.0, clock=lambda: next(seconds))
        >>> schedule.is_due(), schedule.is_due()
        (False, True)
        >>> with schedule.writing():  # takes a second, so that the next one waits until 2 are 1 % of the time
        ...     pass
        >>> schedule.is_due()
        False
    """

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._start = clock()
        self._due = self._start + every
        self._spent = 0.0

    def is_due(self) -> bool:
        """Tell whether a checkpoint is due."""
        return self._clock() >= self._due

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time that the block takes, and decide when the next checkpoint is due."""
        start = self._clock()
        yield
        end = self._clock()
        self._spent += end - start
        self._due = end + self._every
        if self._every:
            # The next checkpoint will cost about as much, and must stay within the limit too.
            self._due = max(self._due, self._start + (self._spent + end - start) / COST_LIMIT)
