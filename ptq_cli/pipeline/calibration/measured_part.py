"""One part of a calibration: where it comes from, and its statistics."""

from collections.abc import Mapping
from dataclasses import replace

from ptq_cli.calibdata.dataset.selection import Selection, Shard
from ptq_cli.collectors.artifact.calibration_file import Calibration, Provenance
from ptq_cli.collectors.artifact.share import Share
from ptq_cli.collectors.statistics.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import EmptyDataError
from ptq_cli.core.work.progress import Progress, ProgressCallback
from ptq_cli.pipeline.calibration.calibration_checkpoint import advance
from ptq_cli.pipeline.calibration.counting.collect import CalibrationCheckpoints
from ptq_cli.pipeline.calibration.counting.count_batches import AfterBatch
from ptq_cli.pipeline.calibration.measure import CalibrationSubject, measure
from ptq_cli.pipeline.calibration.provenance import device_kind, flags_to_store, settings_of, source_hashes
from ptq_cli.pipeline.run.resolve import Request, Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.sections.calibration_sections import CalibrationSettings
from ptq_cli.runtime.machine import Machine

NO_DATA = ""
"""Stands for the digest of the data where no activation has to be measured, and none were given."""


def provenance_of(
    subject: CalibrationSubject, request: Request, resolved: Resolved, run: RunDirectory, shard: Shard
) -> Provenance:
    """Return what a calibration of a shard is made from, before its first batch."""
    model, recipe = subject.model, resolved.recipe
    settings = settings_of(recipe, run) | device_kind(resolved.machine.device)
    return Provenance(
        model=model.stored.sha256,
        source=model.file.sha256,
        data=subject.data.digest() if subject.data is not None else NO_DATA,
        settings=settings | source_hashes(recipe.model.arch, model.file, run),
        flags=flags_to_store(request, run),
        method=recipe.calibration.method,
        samples=0,
        share=Share(shard.count, {shard.number: 0}, subject.batch_size, finished=False),
    )


def measure_part(
    subject: CalibrationSubject,
    settings: CalibrationSettings,
    machine: Machine,
    begun: Provenance,
    progress: ProgressCallback,
    *,
    after_batch: AfterBatch | None = None,
    checkpoints: CalibrationCheckpoints | None = None,
    initial: Mapping[str, TensorStatistics] | None = None,
) -> Calibration:
    """Run what is left of a shard through the model.

    Args:
        subject: the model and the data.
        settings: of the calibration.
        machine: where it runs.
        begun: which shard, and how much of it was seen before.
        progress: is called after each batch.
        after_batch: is called after each batch.
        checkpoints: is given the statistics after a batch where it wants them.
        initial: the statistics of what was seen before.

    Raises:
        EmptyDataError: the whole set, which is but one shard, has no samples.
        PtqError: as ``measure`` does.
    """
    if begun.share is None:
        raise ValueError("a part is of a shard")
    ((number, done),) = begun.share.batches.items()
    batches = 0

    def count_batch(count: int, samples: int) -> None:
        nonlocal batches
        batches = count
        if after_batch is not None:
            after_batch(count, samples)

    def shift(step: Progress) -> None:
        total = begun.samples + step.total if step.total is not None else None
        progress(replace(step, done=begun.samples + step.done, total=total))

    selection = Selection(Shard(number, begun.share.count), done)
    statistics, samples = measure(
        subject,
        settings,
        machine,
        shift,
        selection,
        after_batch=count_batch,
        checkpoints=checkpoints,
        initial=initial,
    )
    provenance = advance(begun, batches, samples, finished=True)
    require_samples_seen(provenance)
    return Calibration(provenance, statistics)


def require_samples_seen(provenance: Provenance) -> None:
    """Refuse a calibration of a whole set that had no samples; a shard of few batches may have none.

    Raises:
        EmptyDataError: there was no sample.
    """
    if provenance.share is None and not provenance.samples:
        raise EmptyDataError(
            "the calibration set has no samples", hint="pass a set that has samples with --data"
        )
