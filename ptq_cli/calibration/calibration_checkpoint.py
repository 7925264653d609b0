"""Checkpoints of a calibration: a calibration file whose share is not finished."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ptq_cli.calibration.count_batches import Statistics
from ptq_cli.collectors.calibration_file import Calibration, Provenance, load_calibration, save_calibration
from ptq_cli.collectors.share import Share
from ptq_cli.setup.resumable import Checkpoints, Tell, continued

WORK = "calibration"


class CheckpointWriter:
    """Writes a checkpoint after a batch, once it is due: the ``checkpoints`` of ``Counting``.

    ``begun`` is what the calibration is made from, with the samples and batches that were seen before.
    """

    def __init__(self, checkpoints: Checkpoints, begun: Provenance) -> None:
        self._checkpoints, self._begun = checkpoints, begun
        self.is_due = checkpoints.is_due

    def write(self, batches: int, samples: int, snapshot: Callable[[], Statistics]) -> None:
        """Write a checkpoint, or tell that it cannot be written."""
        self._checkpoints.write(
            lambda path: save_calibration(
                Calibration(advance(self._begun, batches, samples), snapshot()), path
            )
        )


def advance(begun: Provenance, batches: int, samples: int, *, finished: bool = False) -> Provenance:
    """Provenance after further batches of its one shard; finished, the whole of a set has no share.

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
    path: Path, wanted: Provenance, tensors: Collection[str], every: float, tell: Tell
) -> tuple[Provenance, Statistics | None, CheckpointWriter]:
    """What a calibration begins from, what was counted before, and what writes checkpoints.

    ``wanted`` is what the calibration is made from; its share is the shard at hand. A checkpoint of another
    one is ignored, and told of.
    """
    earlier = continued(
        path,
        WORK,
        load_calibration,
        lambda found: _difference(found, wanted, tensors),
        lambda found: f"{found.provenance.samples} samples",
        tell,
    )
    statistics = None
    if earlier is not None:
        wanted = replace(wanted, samples=earlier.provenance.samples, share=earlier.provenance.share)
        statistics = earlier.statistics
    return wanted, statistics, CheckpointWriter(Checkpoints(path, WORK, every, tell), wanted)


def _difference(found: Calibration, wanted: Provenance, tensors: Collection[str]) -> str:
    """Why a checkpoint is not of this calibration; an empty text if it is."""
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
