"""``calibrate``: run the calibration set once, and keep its statistics."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from ptq_cli.calibdata.bind import is_step
from ptq_cli.calibdata.dataset.selection import WHOLE, Shard, parse_shard
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.calibration.calibration_checkpoint import resume
from ptq_cli.calibration.measure import (
    CalibrationSubject,
    measure_part,
    open_subject,
    provenance_of,
    require_samples_seen,
)
from ptq_cli.collectors.calibration_file import (
    Calibration,
    calibration_bytes,
    load_calibration,
    parse_calibration,
    save_calibration,
)
from ptq_cli.collectors.tensor_statistics import NonFinite
from ptq_cli.core.arithmetic import ZERO_AMAX
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recover.recovery_effects import Rescaling
from ptq_cli.recover.rescaling import rescaled
from ptq_cli.runtime.cuda import require_device
from ptq_cli.runtime.machine import Machine
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.ranks import Ranks, find_ranks, require_single
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.resumable import NO_CHECKPOINTS, discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory

if TYPE_CHECKING:
    from ptq_cli.setup.distributed import Group


# What a calibration returns, and the files that it writes.


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """What ``ptq calibrate`` measured."""

    DERIVED: ClassVar[tuple[str, ...]] = ("calibration",)

    run: Annotated[RunDirectory, "Where the files are."]
    source: Annotated[str, "The data, as it was named."]
    samples: Annotated[int, "How many samples were seen."]
    method: Annotated[str, "The collector."]
    tensors: Annotated[int, "How many tensors were measured."]
    parity: Annotated[
        float | None,
        "Largest relative difference of the float ONNX model to its source, or None if it was not "
        "compared: ONNX that no pass rewrote.",
    ]
    dead: Annotated[tuple[str, ...], "Names of tensors that were always 0."]
    shards: Annotated[str, "Which part of the set was seen, such as shard 2 of 8; empty for all of it."] = ""
    nonfinite: Annotated[
        Mapping[str, NonFinite], "Tensors that held NaN or infinities, which was allowed, with how many."
    ] = field(default_factory=dict)
    channels: Annotated[
        Mapping[str, int], "Tensors of which each channel was measured, with the number of channels."
    ] = field(default_factory=dict)
    faint: Annotated[
        tuple[str, ...], "Names of tensors that were not always 0, and become it: no value was above 2^-110."
    ] = ()
    compared_with: Annotated[str, "Whose outputs parity compares with."] = "PyTorch's"
    notes: Annotated[tuple[str, ...], "What was done to the model and the data that a user should know."] = ()
    unit: Annotated[
        str,
        "What is counted as one: sample, or step of recordings or of data whose items are run as they are.",
    ] = "sample"
    rescaled: Annotated[tuple[Rescaling, ...], "What was done to the channels of the model."] = ()

    @property
    def calibration(self) -> Path:
        """The file with the statistics."""
        return self.run.calibration


@dataclass(frozen=True)
class Calibrated:
    """A calibration that is not written yet."""

    result: CalibrationResult
    model: StoredModel
    calibration: Calibration
    files: Mapping[Path, Content]


def assemble(
    subject: CalibrationSubject,
    calibration: Calibration,
    recipe: Recipe,
    run: RunDirectory,
    changed: tuple[Rescaling, ...] = (),
) -> Calibrated:
    """Return the files of a calibration, and what to tell of it."""
    model, provenance = subject.model, calibration.provenance
    files: dict[Path, Content] = {
        **model.stored.files(run.float_model),
        run.calibration: calibration_bytes(calibration),
        run.recipe: recipe_to_toml(recipe, run.path).encode(),
    }
    seen = calibration.statistics
    result = CalibrationResult(
        run=run,
        source=str(recipe.calibration.data),
        samples=provenance.samples,
        method=provenance.method,
        tensors=len(seen),
        parity=model.parity,
        dead=tuple(name for name, item in seen.items() if item.dead),
        shards=provenance.share.describe() if provenance.share is not None else "",
        nonfinite={name: item.nonfinite for name, item in seen.items() if item.nonfinite.total},
        channels={name: item.channels.size for name, item in seen.items() if item.channels is not None},
        faint=tuple(name for name, item in seen.items() if 0.0 < max(-item.low, item.high) <= ZERO_AMAX),
        compared_with=model.compared_with,
        notes=(*model.notes, *subject.notes),
        unit="step" if is_step(model.inputs) or isinstance(subject.data, Recordings) else "sample",
        rescaled=changed,
    )
    return Calibrated(result, model.stored, calibration, files)


def run_calibrate(
    request: Request,
    run: RunDirectory,
    progress: ProgressCallback = silent,
    *,
    shard: str | None = None,
    restart: bool = False,
) -> CalibrationResult:
    """Calibrate, and write the float model, the statistics and the resolved recipe.

    Nothing but checkpoints is written before everything succeeded.
    """
    part = parse_shard(shard) if shard is not None else WHOLE
    ranks = find_ranks(os.environ)
    require_single(ranks if shard is not None else None, "one shard")
    is_first = ranks is None or ranks.is_first
    with joined_ranks(ranks) as group:
        resolved = resolve(request)
        require_outputs(run, input_files(resolved.recipe))
        if ranks is not None:
            resolved = replace(resolved, machine=machine_of_rank(resolved.machine, ranks))
        require_device(resolved.machine.device)
        if restart and is_first:
            discard_checkpoint(run.checkpoint)
        opened = open_subject(resolved, progress, run.float_model)
        request, resolved = opened.as_given(request, resolved)
        subject, changed = rescaled(opened, resolved, progress)
        made = make_calibration(subject, request, resolved, run, progress, part, changed=changed, group=group)
        if is_first:
            write_together(made.files)
            discard_checkpoint(run.checkpoint)
    return made.result


@contextmanager
def joined_ranks(ranks: Ranks | None) -> "Iterator[Group | None]":
    """Join the processes that torchrun started until all are done; None is given to a single process."""
    if ranks is None:
        yield None
        return
    from ptq_cli.setup.distributed import joined

    with joined(ranks) as group:
        yield group
        group.wait_for_all("written")


def machine_of_rank(machine: Machine, ranks: Ranks) -> Machine:
    """Return the rank's own part of the machine: its threads, and a GPU."""
    device = machine.device.for_rank(ranks.local_rank)
    return replace(machine, device=device, threads=ranks.threads(machine.threads))


def make_calibration(
    subject: CalibrationSubject,
    request: Request,
    resolved: Resolved,
    run: RunDirectory,
    progress: ProgressCallback,
    shard: Shard = WHOLE,
    *,
    changed: tuple[Rescaling, ...] = (),
    group: "Group | None" = None,
) -> Calibrated:
    """Run the data through the model, from the last checkpoint on; only checkpoints are written.

    The processes of a ``group`` run a share each, and have no checkpoints: the shards of one rank do not
    continue those of another, as ``--shard`` does.
    """

    def tell(note: str) -> None:
        progress(Progress("calibrate", 0, None, note))

    begun = provenance_of(subject, request, resolved, run, shard if group is None else group.shard)
    settings = resolved.recipe.calibration
    if group is not None:
        part = measure_part(
            subject, settings, resolved.machine, begun, progress, after_batch=group.after_batch
        )
        merged = group.merge(part, calibration_bytes, parse_calibration, group.next_place())
        require_samples_seen(merged.provenance)
        return assemble(subject, merged, resolved.recipe, run, changed)
    if subject.data is None and shard is WHOLE:
        return assemble(subject, Calibration(replace(begun, share=None), {}), resolved.recipe, run)
    initial = writer = None
    if subject.dataset.is_resumable:
        path, measured, every = run.checkpoint, subject.measured, resolved.recipe.runtime.checkpoint_every
        begun, initial, writer = resume(
            path, begun, measured, every, tell, load=load_calibration, save=save_calibration
        )
    else:
        tell(NO_CHECKPOINTS)
    calibration = measure_part(
        subject, settings, resolved.machine, begun, progress, checkpoints=writer, initial=initial
    )
    return assemble(subject, calibration, resolved.recipe, run, changed)
