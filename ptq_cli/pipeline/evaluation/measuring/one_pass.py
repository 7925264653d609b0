"""One pass of all models over the evaluation set, from the last checkpoint on."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from ptq_cli.calibdata.ahead import decoded_ahead
from ptq_cli.calibdata.dataset.selection import WHOLE, Selection
from ptq_cli.core.entry_point import is_entry_point
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.work.progress import Progress, ProgressCallback
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.calibration.calibration_checkpoint import NO_CHECKPOINTS
from ptq_cli.pipeline.calibration.measure import checked
from ptq_cli.pipeline.evaluation.measuring.evaluation_checkpoint import (
    EvaluationCheckpoints,
    Identity,
    continued,
)
from ptq_cli.pipeline.evaluation.measuring.evaluation_data import EvaluationSet, MeasuredSet
from ptq_cli.pipeline.evaluation.measuring.output_axes import output_axes
from ptq_cli.pipeline.preparing.float_model import open_source
from ptq_cli.pipeline.run.library_versions import library_versions
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.run.used_plugins import plugin_versions
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.evaluation_sections import EvaluationSettings
from ptq_cli.recipe.sections.input_sections import ImageSettings, ModelSettings
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.evaluation.evaluator import Evaluation, Evaluator, Watch
from ptq_cli.report.evaluation.run_models import Run, Runs, run_evaluator
from ptq_cli.report.evaluation.sample_axes import Axis, axis_before, samples_first
from ptq_cli.runtime.engines.engine import Engine, OpenedModel
from ptq_cli.runtime.engines.onnxruntime_engine import ONNX_RUNTIME
from ptq_cli.runtime.engines.reopened import ReopenedModel
from ptq_cli.runtime.sessions.session import Session


@dataclass(frozen=True)
class EvaluatedModels:
    """The models of an evaluation.

    Attributes:
        float_model: serialized; ONNX Runtime runs it.
        quantized: the quantized ones by the name of their file, serialized.
        engines: the runtime of each; ONNX Runtime of those that are not named.
    """

    float_model: StoredModel
    quantized: Mapping[str, StoredModel]
    engines: Mapping[str, Engine] = field(default_factory=dict)

    def opened(self, name: str, threads: int) -> OpenedModel:
        """Return a quantized model ready to run; of large models one at a time is in memory."""
        model, engine = self.quantized[name], self.engines.get(name, ONNX_RUNTIME)
        if self.float_model.data:
            return ReopenedModel(model, threads=threads, engine=engine)
        return engine.open(model, threads=threads)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of ptq and of the libraries that decide what comes out."""
        return library_versions() | dict(engine.version().split() for engine in self.engines.values())


@dataclass(frozen=True, kw_only=True)
class OpenedPass:
    """A pass over the evaluation set that is ready to begin.

    Attributes:
        runs: the models, with the samples of each output on axis 0.
        axes: where the samples of each output are in the model's output.
        identity: what it is of; see ``EvaluationCheckpoints``.
        make: makes an evaluator.
    """

    runs: Runs
    axes: tuple[Axis, ...]
    identity: Identity
    make: Callable[[], Evaluator]


def evaluate_pass(
    resolved: Resolved,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    run: RunDirectory,
    progress: ProgressCallback,
    watches: Sequence[Watch] = (),
) -> tuple[Evaluation, ...]:
    """Run all models over the evaluation set once, and return what was measured of each quantized one.

    Args:
        resolved: the recipe, and the machine that runs the models.
        models: what runs.
        evaluation_set: the data and metrics.
        run: where checkpoints are.
        progress: is called after each batch.
        watches: one for each quantized model, which sees its outputs too; they are new.

    Raises:
        LabelError: a label does not fit a metric.
        MetricError: an output does not fit a metric, or holds NaN.
    """
    tell = teller(progress)
    opened = open_pass(resolved, models, evaluation_set, progress, watches, run.path)
    dataset, settings, path = evaluation_set.dataset, resolved.recipe.evaluation, run.evaluation_checkpoint
    evaluator = continued(path, opened.identity, opened.make, tell) if dataset.is_resumable else opened.make()
    checkpoints = None
    if not dataset.is_resumable:
        tell(NO_CHECKPOINTS)
    elif evaluator.not_resumable:
        tell(
            f"no checkpoints are written: {' and '.join(evaluator.not_resumable)} cannot continue from one, "
            "because it has no state_dict and load_state_dict"
        )
    else:
        checkpoints = EvaluationCheckpoints(path, opened.identity, settings.checkpoint_every, tell)
    batches = checked(dataset.batches(evaluation_set.batch_size, Selection(WHOLE, evaluator.batches)))
    with closing(decoded_ahead(batches, resolved.machine.prefetch)) as decoded:
        run_evaluator(
            evaluator,
            opened.runs,
            decoded,
            total=dataset.count,
            progress=progress,
            after_batch=partial(checkpoints.after_batch, evaluator) if checkpoints is not None else None,
        )
    return evaluations_of(evaluator, evaluation_set.outputs, opened.axes)


def teller(progress: ProgressCallback) -> Callable[[str], None]:
    """Return what tells a note."""
    return lambda note: progress(Progress("evaluate", 0, None, note))


def open_pass(
    resolved: Resolved,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    progress: ProgressCallback,
    watches: Sequence[Watch],
    folder: Path,
) -> OpenedPass:
    """Open the models, and find out where the samples are in their outputs.

    Args:
        resolved: the recipe, and the machine that runs the models.
        models: what runs.
        evaluation_set: the data and metrics.
        progress: is told the notes on the data.
        watches: one for each quantized model; they are new.
        folder: the run directory.

    Raises:
        PtqError: a model cannot be opened.
    """
    recipe, settings, machine = resolved.recipe, resolved.recipe.evaluation, resolved.machine
    for note in evaluation_set.notes:
        teller(progress)(note)
    # Of large models one at a time is in memory.
    opened = ReopenedModel if models.float_model.data else Session
    runs = Runs(
        opened(models.float_model, threads=machine.threads).run,
        tuple(models.opened(name, machine.threads).run for name in models.quantized),
        _pytorch_run(recipe.model) if settings.with_pytorch else None,
    )
    axes = _axes(runs, evaluation_set)
    measured = MeasuredSet.of(evaluation_set)
    return OpenedPass(
        runs=_samples_first(runs, axes),
        axes=axes,
        identity=pass_identity(settings, recipe.image, models, measured, watches, folder),
        make=evaluator_maker(models, measured, watches, with_pytorch=settings.with_pytorch),
    )


def evaluations_of(
    evaluator: Evaluator, outputs: Sequence[str], axes: Sequence[Axis]
) -> tuple[Evaluation, ...]:
    """Return what was measured of each quantized model, with axes as the models' outputs have them.

    Raises:
        EmptyDataError: there was no sample.
        MetricError: an output held NaN or Inf, or a metric has no value.
    """
    by_output = dict(zip(outputs, axes, strict=True))
    return tuple(
        replace(found, measurements=tuple(_as_in_the_file(item, by_output) for item in found.measurements))
        for found in evaluator.evaluations()
    )


def _axes(runs: Runs, evaluation_set: EvaluationSet) -> tuple[Axis, ...]:
    """Return the axis of the samples of each output."""
    outputs = len(evaluation_set.outputs)
    if evaluation_set.noted_axes is not None:
        return evaluation_set.noted_axes
    if evaluation_set.leads_with_samples:
        return (0,) * outputs
    return output_axes(evaluation_set.dataset, evaluation_set.fixed_batch, outputs, runs.of_float)


def _samples_first(runs: Runs, axes: Sequence[Axis]) -> Runs:
    return Runs(
        samples_first(runs.of_float, axes),
        tuple(samples_first(run, axes) for run in runs.quantized),
        samples_first(runs.pytorch, axes) if runs.pytorch is not None else None,
    )


def _as_in_the_file(item: Measurement, axes: Mapping[str, Axis]) -> Measurement:
    """Return a measurement that names the axis of its channel as the model's output has it."""
    if item.channel is None:
        return item
    axis = axis_before(item.channel.axis, axes.get(item.output or ""))
    return replace(item, channel=replace(item.channel, axis=axis))


def evaluator_maker(
    models: EvaluatedModels, measured: MeasuredSet, watches: Sequence[Watch], *, with_pytorch: bool
) -> Callable[[], Evaluator]:
    """Return what makes an evaluator of these models."""
    several = len(models.quantized) > 1
    names = [f"quantized model '{name}'" if several else "quantized model" for name in models.quantized]
    return lambda: Evaluator(
        measured.outputs,
        measured.metrics,
        names,
        with_pytorch=with_pytorch,
        class_names=measured.class_names,
        watches=watches,
    )


def _pytorch_run(settings: ModelSettings) -> Run:
    source = open_source(settings)
    return lambda inputs: source.run(inputs) or ()


def pass_identity(
    settings: EvaluationSettings,
    image: ImageSettings,
    models: EvaluatedModels,
    measured: MeasuredSet,
    watches: Sequence[Watch],
    folder: Path,
) -> Identity:
    """Return what an evaluation is of, each part under the name that a message gives it.

    Args:
        settings: of the evaluation.
        image: how images become arrays.
        models: what runs.
        measured: the data and metrics.
        watches: what sees the outputs too.
        folder: where the paths of code begin, so that it can move with the run.
    """
    specs = [judged.spec for judged in measured.metrics]
    files = {spec.metric.rpartition(":")[0] for spec in specs if is_entry_point(spec.metric)}
    named = [replace(spec, metric=relative_location(spec.metric, folder)) for spec in specs]
    quantized = hashlib.sha256()
    for model in models.quantized.values():
        quantized.update(model.sha256.encode())
    return {
        "the float model": models.float_model.sha256,
        "the quantized model": quantized.hexdigest(),
        "the evaluation data": measured.data_digest,
        "the number of samples": str(settings.samples),
        "the batch size": str(measured.batch_size),
        "the image settings": json.dumps(asdict(image)),
        "the metrics": repr(named),
        "the plug-ins": repr(sorted(plugin_versions(Recipe(), specs).items())),
        "the metrics' code": repr(
            sorted(
                (relative_location(file, folder), sha256_file(Path(file)))
                for file in files
                if file.endswith(".py")
            )
        ),
        "--thumbnails": repr([watch.identity for watch in watches]),
        "with_pytorch": str(settings.with_pytorch),
        "the version of a library": repr(sorted(models.versions.items())),
    }
