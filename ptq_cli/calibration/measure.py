"""One part of a calibration, from its last checkpoint on; and the checkpoint itself."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import EVERY_BATCH, Selection, Shard, checked
from ptq_cli.calibration.collect import CountedTensors, collect, counting_on
from ptq_cli.calibration.count_batches import Counting, Statistics
from ptq_cli.calibration.open_forward import open_forward
from ptq_cli.calibration.provenance import device_kind, flags_to_store, settings_of, source_hashes
from ptq_cli.calibration.subject import CalibrationSubject
from ptq_cli.collectors.calibration_file import (
    Calibration,
    Provenance,
    Share,
    load_calibration,
    save_calibration,
)
from ptq_cli.collectors.histogram_collector import compile_kernel
from ptq_cli.core.errors import EmptyDataError
from ptq_cli.models.graph_reading import nested_values
from ptq_cli.setup.parts import Work
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.resumable import Checkpoints, Tell, continued

_WORK = "calibration"


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

    Raises: ValueError: the provenance is not of exactly one shard.
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
        _WORK,
        load_calibration,
        lambda found: _difference(found, wanted, tensors),
        lambda found: f"{found.provenance.samples} samples",
        tell,
    )
    statistics = None
    if earlier is not None:
        wanted = replace(wanted, samples=earlier.provenance.samples, share=earlier.provenance.share)
        statistics = earlier.statistics
    return wanted, statistics, CheckpointWriter(Checkpoints(path, _WORK, every, tell), wanted)


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


NO_DATA = ""  # the digest where no activation has to be measured, and no data were given


def measure(
    subject: CalibrationSubject, resolved: Resolved, counting: Counting, selection: Selection = EVERY_BATCH
) -> tuple[Statistics, int, int]:
    """Run the selected batches through the model; return the statistics, and the batches and samples."""
    model, dataset = subject.model, subject.dataset
    settings, machine = resolved.recipe.calibration, resolved.machine
    bound, batch_size = bind_inputs(dataset, model.inputs), subject.batch_size
    fed = {spec.name for spec in model.inputs}
    inputs, taps = ([name for name in subject.measured if (name in fed) == given] for given in (True, False))
    device, threads = machine.device, machine.threads
    batches = bound.batches(batch_size, selection)
    compile_kernel()
    return collect(
        open_forward(model, taps, machine, bound, batch_size, counting.progress),
        batches if settings.allow_nonfinite else checked(batches),
        CountedTensors(
            inputs=inputs,
            taps=taps,
            method=settings.method,
            nested=nested_values(model.model.graph),
            allow_nonfinite=settings.allow_nonfinite,
            make_tapped=counting_on(device),
        ),
        # More threads would wait for one another at the queue of one GPU; the second counts the inputs.
        threads if device.is_host else min(threads, 2),
        replace(
            counting,
            total=selection.samples(dataset.count, batch_size) if dataset.count is not None else None,
        ),
    )


def provenance_of(subject: CalibrationSubject, work: Work) -> Provenance:
    """What a calibration of a part is made from, before its first batch."""
    model, recipe, run, shard = subject.model, work.resolved.recipe, work.run, work.part.shard
    settings = settings_of(recipe, run) | device_kind(work.resolved.machine.device)
    return Provenance(
        model=model.stored.sha256,
        source=model.file.sha256,
        data=subject.data.digest() if subject.data is not None else NO_DATA,
        settings=settings | source_hashes(recipe.model.arch, model.file, run),
        flags=flags_to_store(work.resolved.request, run),
        method=recipe.calibration.method,
        samples=0,
        share=Share(shard.count, {shard.number: 0}, subject.batch_size, finished=False),
    )


def measure_part(
    subject: CalibrationSubject, resolved: Resolved, begun: Provenance, counting: Counting
) -> Calibration:
    """Run what is left of a shard, of which ``begun`` says how much was seen before, through the model."""
    if begun.share is None:
        raise ValueError("a part is of a shard")
    ((number, done),) = begun.share.batches.items()
    selection = Selection(Shard(number, begun.share.count), done)
    counting = replace(counting, seen=begun.samples)
    statistics, batches, samples = measure(subject, resolved, counting, selection)
    provenance = advance(begun, batches, samples, finished=True)
    require_samples_seen(provenance)
    return Calibration(provenance, statistics)


def require_samples_seen(provenance: Provenance) -> None:
    """Refuse a calibration of a whole set that had no samples; a shard of few batches may have none."""
    if provenance.share is None and not provenance.samples:
        raise EmptyDataError(
            "the calibration set has no samples", hint="pass a set that has samples with --data"
        )
