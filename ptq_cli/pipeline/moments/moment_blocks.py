"""The tensors are taken in blocks that fit into memory: a pass over the data for each."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ptq_cli.calibdata.dataset.selection import Selection, Shard
from ptq_cli.collectors.artifact.calibration_file import Calibration, Provenance, statistics_digest
from ptq_cli.collectors.artifact.share import Share
from ptq_cli.core.errors import InputFileError, MomentsFileError, StaleMomentsError
from ptq_cli.core.work.progress import Progress, ProgressCallback
from ptq_cli.pipeline.calibration.calibration_checkpoint import CheckpointWriter, advance, load_checkpoint
from ptq_cli.pipeline.calibration.counting.count_batches import AfterBatch
from ptq_cli.pipeline.moments.collect_moments import STAGE, MomentSubject, collect_moments
from ptq_cli.recovery.moments.moments_file import METHOD, Moments, load_moments, save_moments
from ptq_cli.recovery.moments.tensor_moments import MomentSite, TensorMoments, total_bytes
from ptq_cli.runtime.machine import Machine

MEMORY_SHARE = 4
"""One part of so many of the memory that is allowed is for the sums; the model and the data need the rest."""
IN_MEMORY = 2 << 30
"""Bytes, where no limit is given."""
STATISTICS, RANGES = "calibration.statistics", "activations.ranges"
"""What moments depend on, beside what the calibration does."""


def divided(sites: Sequence[MomentSite], memory: int | None) -> list[list[MomentSite]]:
    """Return the tensors in blocks whose sums fit into memory; a tensor that does not is alone.

    Args:
        sites: the tensors.
        memory: bytes that all may take; None for any number.
    """
    limit = memory // MEMORY_SHARE if memory is not None else IN_MEMORY
    blocks: list[list[MomentSite]] = []
    for site in sites:
        if blocks and total_bytes([*blocks[-1], site]) <= limit:
            blocks[-1].append(site)
        else:
            blocks.append([site])
    return blocks


def moments_provenance(
    calibration: Calibration, sites: Sequence[MomentSite], shard: Shard, batch_size: int
) -> Provenance:
    """Return what the moments of a shard are made from, before its first batch."""
    begun = calibration.provenance
    text = "\n".join(f"{site.tensor} {site.grid} {[item.key for item in site.readings]}" for site in sites)
    own = {
        STATISTICS: repr(statistics_digest(calibration.statistics)),
        RANGES: repr(hashlib.sha256(text.encode()).hexdigest()),
    }
    return replace(
        begun,
        settings=begun.settings | own,
        method=METHOD,
        samples=0,
        share=Share(shard.count, {shard.number: 0}, batch_size, finished=False),
    )


def require_fit(moments: Moments, wanted: Provenance, name: str) -> None:
    """Refuse moments that rest on another calibration or on other ranges.

    Args:
        moments: as they were found.
        wanted: what they have to rest on.
        name: of their file.

    Raises:
        StaleMomentsError: they do.
    """
    has = moments.provenance
    for reason, fits in (
        ("another model", has.model == wanted.model),
        ("another calibration", has.settings.get(STATISTICS) == wanted.settings[STATISTICS]),
        ("other ranges of activations", has.settings.get(RANGES) == wanted.settings[RANGES]),
    ):
        if not fits:
            raise StaleMomentsError(
                f"'{name}' holds moments of {reason}",
                hint="run ptq calibrate --moments again with the recipe that is exported, or remove the file",
            )
    if has.share is not None:
        raise StaleMomentsError(
            f"'{name}' holds moments of {has.share.describe()}, missing: {has.share.describe_missing()}",
            hint="run ptq merge to combine the shards",
        )


def measure_blocks(
    subject: MomentSubject,
    sites: Sequence[MomentSite],
    machine: Machine,
    begun: Provenance,
    progress: ProgressCallback,
    *,
    folder: Path | None,
    every: float | None = None,
    after_batch: AfterBatch | None = None,
    join: Callable[[Moments, int], Moments] = lambda part, _block: part,
) -> Moments:
    """Return the moments of all tensors, each block from its last checkpoint on.

    Args:
        subject: the model and the data.
        sites: the tensors.
        machine: what of it may be used.
        begun: what the moments are made from; its share is the shard to run.
        progress: is told of batches, and of checkpoints.
        folder: where the moments of blocks wait, and checkpoints are; None where there is one block and no
            checkpoint.
        every: seconds between checkpoints; None for none.
        after_batch: is called after each batch.
        join: puts a block together with those of other processes; where there are some, none continues
            another's.

    Raises:
        PtqError: as ``collect_moments`` does.
    """
    blocks = divided(sites, machine.memory)
    if len(blocks) > 1:
        note = (
            f"the moments of {len(sites)} tensors take {len(blocks)} passes to stay below the limit of memory"
        )
        progress(Progress(STAGE, 0, None, note=note))
    found: dict[str, TensorMoments] = {}
    provenance = begun
    for number, block in enumerate(blocks):
        path = folder / f"moments.partial-{number + 1}.safetensors" if folder is not None else None
        part = _finished(path, begun, block) if path is not None and every is not None else None
        if part is None:
            part = join(_measure(subject, block, machine, begun, progress, path, every, after_batch), number)
            if path is not None and len(blocks) > 1:
                save_moments(part, path)
                part = load_moments(path)
        found |= part.statistics
        provenance = part.provenance
    return Moments(provenance, found)


def _measure(
    subject: MomentSubject,
    sites: Sequence[MomentSite],
    machine: Machine,
    begun: Provenance,
    progress: ProgressCallback,
    path: Path | None,
    every: float | None,
    after_batch: AfterBatch | None,
) -> Moments:
    def tell(note: str) -> None:
        progress(Progress(STAGE, 0, None, note))

    names, share = [site.tensor for site in sites], begun.share
    if share is None:
        raise ValueError("a part is of a shard")
    earlier = writer = None
    if path is not None and every is not None and subject.dataset.is_resumable:
        earlier = load_checkpoint(path, begun, names, tell, load=load_moments)
    initial: Mapping[str, TensorMoments] | None = None
    if earlier is not None:
        begun = replace(begun, samples=earlier.provenance.samples, share=earlier.provenance.share)
        initial = earlier.statistics
        tell(f"continuing after {begun.samples} samples; --restart starts again")
        share = begun.share or share
    if path is not None and every is not None and subject.dataset.is_resumable:
        writer = CheckpointWriter(path, begun, every, tell, save=save_moments)
    ((number, done),) = share.batches.items()
    statistics, batches, samples = collect_moments(
        subject,
        sites,
        machine,
        progress,
        selection=Selection(Shard(number, share.count), done),
        seen=begun.samples,
        after_batch=after_batch,
        checkpoints=writer,
        initial=initial,
    )
    return Moments(advance(begun, batches, samples, finished=True), statistics)


def _finished(path: Path, begun: Provenance, sites: Sequence[MomentSite]) -> Moments | None:
    """Return a block that an earlier run has finished; None if there is none of this very calibration."""
    try:
        found = load_moments(path)
    except (InputFileError, MomentsFileError):
        return None
    share, wanted = found.provenance.share, begun.share
    is_same = replace(found.provenance, samples=0, share=None) == replace(begun, samples=0, share=None)
    if wanted is None or not is_same or set(found.statistics) != {site.tensor for site in sites}:
        return None
    if share is None:
        return found if wanted.count == 1 else None
    fits = (share.count, share.batches.keys(), share.batch_size) == (
        wanted.count,
        wanted.batches.keys(),
        wanted.batch_size,
    )
    return found if fits and share.finished else None
