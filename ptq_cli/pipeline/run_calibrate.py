"""``calibrate``: run the calibration set once, and keep its statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from ptq_cli.calibdata.bind import is_step
from ptq_cli.calibdata.dataset.batches import WHOLE
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.calibration.count_batches import CALIBRATE_STAGE, Counting
from ptq_cli.calibration.measure import measure_part, provenance_of, require_samples_seen, resume
from ptq_cli.calibration.subject import CalibrationSubject, open_subject
from ptq_cli.collectors.calibration_file import Calibration, calibration_bytes
from ptq_cli.collectors.tensor_statistics import NonFinite
from ptq_cli.core.arithmetic import ZERO_AMAX
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recover.recovery_effects import Rescaling
from ptq_cli.recover.rescaling import rescaled
from ptq_cli.runtime.cuda import require_device
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.parts import Work, opened_part
from ptq_cli.setup.resolve import Request, resolve
from ptq_cli.setup.resumable import NO_CHECKPOINTS, discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory


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


def _assembled(
    subject: CalibrationSubject, calibration: Calibration, work: Work, changed: tuple[Rescaling, ...] = ()
) -> Calibrated:
    """The files of a calibration, and what to tell of it."""
    recipe, run = work.resolved.recipe, work.run
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
    with opened_part(shard) as part:
        resolved = resolve(request)
        require_outputs(run, input_files(resolved.recipe))
        resolved = part.on_own_machine(resolved)
        require_device(resolved.machine.device)
        if restart and part.is_first:
            discard_checkpoint(run.checkpoint)
        opened = open_subject(resolved, progress, run.float_model)
        work = Work(resolved=opened.as_given(resolved), run=run, part=part, progress=progress)
        subject, changed = rescaled(opened, work.resolved, progress)
        made = make_calibration(subject, work, changed)
        if part.is_first:
            write_together(made.files)
            discard_checkpoint(run.checkpoint)
    return made.result


def make_calibration(
    subject: CalibrationSubject, work: Work, changed: tuple[Rescaling, ...] = ()
) -> Calibrated:
    """Run the part's data through the model, from the last checkpoint on; only checkpoints are written."""
    resolved, part = work.resolved, work.part
    begun = provenance_of(subject, work)
    if subject.data is None and part.shard is WHOLE:
        return _assembled(subject, Calibration(replace(begun, share=None), {}), work)
    counting = Counting(progress=work.progress)
    if part.group is not None:
        counting = replace(counting, after_batch=part.go_on)
    elif subject.dataset.is_resumable:
        every = resolved.recipe.runtime.checkpoint_every
        tell = partial(work.tell, stage=CALIBRATE_STAGE)
        begun, initial, writer = resume(work.run.checkpoint, begun, subject.measured, every, tell)
        counting = replace(counting, checkpoints=writer, initial=initial)
    else:
        work.tell(NO_CHECKPOINTS, CALIBRATE_STAGE)
    calibration = measure_part(subject, resolved, begun, counting)
    if part.group is not None:
        calibration = part.group.merge(calibration)
        require_samples_seen(calibration.provenance)
    return _assembled(subject, calibration, work, changed)
