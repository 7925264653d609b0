"""Checkpoints: the statistics so far, so that a calibration that was killed continues where it was.

A checkpoint is a calibration file whose share is not finished. It is written to a temporary name and renamed,
so there is always a whole one; where that fails, the last good one stays and the calibration continues.
"""

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Generic

from ptq_cli.collectors.calibration_file import Counted, Item, Provenance
from ptq_cli.collectors.share import Share
from ptq_cli.core.errors import CalibrationFileError, InputFileError, MomentsFileError, OutputFileError
from ptq_cli.core.files import PARTIAL_SUFFIX
from ptq_cli.core.progress import Schedule

Tell = Callable[[str], None]
NO_CHECKPOINTS = "no checkpoints are written: the data is a Python object, which cannot be recognized later"


class CheckpointWriter(Generic[Item]):
    """Writes a checkpoint after a batch, once it is due: the ``checkpoints`` of ``collect``.

    Args:
        path: of the checkpoint.
        begun: what the calibration is made from, with the samples and batches that were seen before.
        every: seconds between checkpoints, at least; 0 writes one after each batch.
        tell: is told that one could not be written.
        clock: seconds that only grow.
        save: writes one, atomically.
    """

    def __init__(
        self,
        path: Path,
        begun: Provenance,
        every: float,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
        *,
        save: Callable[[Counted[Item], Path], None],
    ) -> None:
        self._path = path
        self._begun = begun
        self._tell = tell
        self._save = save
        self._schedule = Schedule(every, clock)

    def is_due(self) -> bool:
        """Return whether it is time for one."""
        return self._schedule.is_due()

    def write(self, batches: int, samples: int, snapshot: Callable[[], dict[str, Item]]) -> None:
        """Write a checkpoint, or tell that it cannot be written."""
        with self._schedule.writing():
            try:
                self._save(Counted(advance(self._begun, batches, samples), snapshot()), self._path)
            except OutputFileError as error:
                kept = "; the last one is kept" if self._path.is_file() else ""
                self._tell(f"no checkpoint was written{kept}, calibration continues: {error.message}")


def advance(begun: Provenance, batches: int, samples: int, *, finished: bool = False) -> Provenance:
    """Return the provenance after further batches of its one shard.

    Edge case:
        The whole of a calibration set, finished, has no share.

    Raises:
        ValueError: the provenance is not of exactly one shard.
    """
    share = begun.share
    if share is None or len(share.batches) != 1:
        raise ValueError("only a single shard can be continued")
    seen = {number: before + batches for number, before in share.batches.items()}
    share = replace(share, batches=seen, finished=finished)
    return replace(begun, samples=begun.samples + samples, share=None if share.is_whole else share)


def load_checkpoint(
    path: Path,
    wanted: Provenance,
    tensors: Collection[str],
    tell: Tell,
    *,
    load: Callable[[Path], Counted[Item]],
) -> Counted[Item] | None:
    """Return the checkpoint of this very calibration, or None.

    Args:
        path: of the checkpoint, which need not be there.
        wanted: what the calibration is made from; its share is the shard at hand.
        tensors: that are measured.
        tell: is told why a checkpoint is ignored.
        load: reads one.
    """
    if not path.is_file():
        return None
    try:
        found = load(path)
    except (InputFileError, CalibrationFileError, MomentsFileError) as error:
        reason = error.message
    else:
        reason = _difference(found, wanted, tensors)
        if not reason:
            return found
    tell(f"not continuing the earlier calibration in '{path}', but starting again: {reason}")
    return None


def discard_checkpoint(path: Path) -> None:
    """Remove the checkpoint, and what a killed process left of one that it was writing.

    Edge case:
        What cannot be removed stays: the next calibration finds it to be finished, and so loses nothing.
    """
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        for leftover in path.parent.glob(f".{path.name}.*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)


def _difference(found: Counted[Item], wanted: Provenance, tensors: Collection[str]) -> str:
    """Say why a checkpoint is not of this calibration; an empty text if it is."""
    has = found.provenance
    for key in sorted(wanted.settings.keys() | has.settings.keys()):
        if has.settings.get(key) != wanted.settings.get(key):
            return f"'{key}' has changed since"
    if (has.model, has.source) != (wanted.model, wanted.source):
        return "it is for a different model"
    if has.data != wanted.data:
        return "the calibration data have changed since"
    return _share_difference(has.share, wanted.share) or (
        "" if set(found.statistics) == set(tensors) else "it measured different tensors"
    )


def _share_difference(has: Share | None, wanted: Share | None) -> str:
    if has is None or wanted is None or has.finished:
        return "it is not a checkpoint"
    if has.batch_size != wanted.batch_size:
        return f"it has batches of {has.batch_size}"
    if (has.count, has.batches.keys()) != (wanted.count, wanted.batches.keys()):
        return f"it is for {has.describe()}"
    return ""
