"""Checkpoints of what is counted: a calibration file whose share is not finished."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Generic

from ptq_cli.collectors.calibration_file import Counted, Item, Provenance
from ptq_cli.collectors.share import Share
from ptq_cli.setup.resumable import Checkpoints, Tell, read_checkpoint


class CheckpointWriter(Generic[Item]):
    """Writes a checkpoint after a batch, once it is due: the ``checkpoints`` of ``collect``.

    ``begun`` is what the calibration is made from, with the samples and batches that were seen before.
    """

    def __init__(
        self, checkpoints: Checkpoints, begun: Provenance, save: Callable[[Counted[Item], Path], None]
    ) -> None:
        self._checkpoints, self._begun, self._save = checkpoints, begun, save
        self.is_due = checkpoints.is_due

    def write(self, batches: int, samples: int, snapshot: Callable[[], dict[str, Item]]) -> None:
        """Write a checkpoint, or tell that it cannot be written."""
        self._checkpoints.write(
            lambda path: self._save(Counted(advance(self._begun, batches, samples), snapshot()), path)
        )


def advance(begun: Provenance, batches: int, samples: int, *, finished: bool = False) -> Provenance:
    """Return the provenance after further batches of its one shard.

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


def resume(
    path: Path,
    wanted: Provenance,
    tensors: Collection[str],
    every: float,
    tell: Tell,
    *,
    load: Callable[[Path], Counted[Item]],
    save: Callable[[Counted[Item], Path], None],
) -> tuple[Provenance, dict[str, Item] | None, CheckpointWriter[Item]]:
    """Return what a calibration begins from, with what was counted before, and what writes checkpoints.

    ``wanted`` is what the calibration is made from; its share is the shard at hand. A checkpoint of another
    one is ignored, and told of.
    """
    earlier = load_checkpoint(path, wanted, tensors, tell, load=load)
    if earlier is not None:
        wanted = replace(wanted, samples=earlier.provenance.samples, share=earlier.provenance.share)
        tell(
            f"continuing an earlier calibration after {wanted.samples} samples; "
            "--set run.restart=true starts again"
        )
    writer = CheckpointWriter(Checkpoints(path, "calibration", every, tell), wanted, save)
    return wanted, earlier.statistics if earlier is not None else None, writer


def load_checkpoint(
    path: Path,
    wanted: Provenance,
    tensors: Collection[str],
    tell: Tell,
    *,
    load: Callable[[Path], Counted[Item]],
) -> Counted[Item] | None:
    """Return the checkpoint of this very calibration, or None."""
    return read_checkpoint(path, "calibration", load, lambda found: _difference(found, wanted, tensors), tell)


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
