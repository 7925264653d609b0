"""What an interrupted command continues from: one file, written once it is due, and discarded at the end.

It is written to a temporary name and renamed, so there is always a whole one; where that fails, the last good
one stays and the work continues.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ptq_cli.core.errors import OutputFileError, PtqError
from ptq_cli.core.partial_files import PARTIAL_SUFFIX
from ptq_cli.core.progress import Schedule

Tell = Callable[[str], None]
Found = TypeVar("Found")
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
    path: Path, work: str, read: Callable[[Path], Found], refusal: Callable[[Found], str], tell: Tell
) -> Found | None:
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
    read: Callable[[Path], Found],
    refusal: Callable[[Found], str],
    done: Callable[[Found], str],
    tell: Tell,
) -> Found | None:
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
