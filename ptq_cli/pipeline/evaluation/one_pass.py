"""One pass of all models over the evaluation set, from the last checkpoint on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ptq_cli.calibdata.ahead import decoded_ahead
from ptq_cli.calibdata.dataset.selection import WHOLE, Selection
from ptq_cli.core.entry_point import is_entry_point
from ptq_cli.core.files import sha256_file
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.models.stored import StoredModel
from ptq_cli.pipeline.calibration.calibration_checkpoint import NO_CHECKPOINTS
from ptq_cli.pipeline.calibration.measure import checked
from ptq_cli.pipeline.evaluation.evaluation_checkpoint import EvaluationCheckpoints, Identity, continued
from ptq_cli.pipeline.evaluation.evaluation_data import EvaluationSet
from ptq_cli.pipeline.evaluation.output_axes import output_axes
from ptq_cli.pipeline.preparing.float_model import open_source
from ptq_cli.pipeline.run.library_versions import library_versions
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.schema import EvaluationSettings, ImageSettings, ModelSettings
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.evaluation.evaluator import Evaluation, Evaluator, Watch
from ptq_cli.report.evaluation.run_models import Run, Runs, run_evaluator
from ptq_cli.report.evaluation.sample_axes import Axis, axis_before, samples_first
from ptq_cli.runtime.engines.engine import Engine, OpenedModel
from ptq_cli.runtime.engines.onnxruntime_engine import ONNX_RUNTIME
from ptq_cli.runtime.reopened import ReopenedModel
from ptq_cli.runtime.session import Session


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
    dataset, batch_size = evaluation_set.dataset, evaluation_set.batch_size
    recipe, settings, machine = resolved.recipe, resolved.recipe.evaluation, resolved.machine

    def tell(note: str) -> None:
        progress(Progress("evaluate", 0, None, note))

    for note in evaluation_set.notes:
        tell(note)
    # Of large models one at a time is in memory.
    opened = ReopenedModel if models.float_model.data else Session
    runs = Runs(
        opened(models.float_model, threads=machine.threads).run,
        tuple(models.opened(name, machine.threads).run for name in models.quantized),
        _pytorch_run(recipe.model) if settings.with_pytorch else None,
    )
    axes = _axes(runs, evaluation_set)
    runs = _samples_first(runs, axes)
    identity = _identity(settings, recipe.image, models, evaluation_set, watches)

    def make() -> Evaluator:
        return _evaluator(models, evaluation_set, watches, with_pytorch=settings.with_pytorch)

    path = run.evaluation_checkpoint
    evaluator = continued(path, identity, make, tell) if dataset.is_resumable else make()
    checkpoints = None
    if not dataset.is_resumable:
        tell(NO_CHECKPOINTS)
    elif evaluator.not_resumable:
        tell(
            f"no checkpoints are written: {' and '.join(evaluator.not_resumable)} cannot continue from one, "
            "because it has no state_dict and load_state_dict"
        )
    else:
        checkpoints = EvaluationCheckpoints(path, identity, settings.checkpoint_every, tell)
    batches = checked(dataset.batches(batch_size, Selection(WHOLE, evaluator.batches)))
    with closing(decoded_ahead(batches, machine.prefetch)) as decoded:
        run_evaluator(
            evaluator, runs, decoded, total=dataset.count, progress=progress, checkpoints=checkpoints
        )
    by_output = dict(zip(evaluation_set.outputs, axes, strict=True))
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


def _evaluator(
    models: EvaluatedModels, evaluation_set: EvaluationSet, watches: Sequence[Watch], *, with_pytorch: bool
) -> Evaluator:
    several = len(models.quantized) > 1
    return Evaluator(
        evaluation_set.outputs,
        evaluation_set.metrics,
        [f"quantized model '{name}'" if several else "quantized model" for name in models.quantized],
        with_pytorch=with_pytorch,
        class_names=evaluation_set.dataset.class_names,
        watches=watches,
    )


def _pytorch_run(settings: ModelSettings) -> Run:
    source = open_source(settings)
    return lambda inputs: source.run(inputs) or ()


def _identity(
    settings: EvaluationSettings,
    image: ImageSettings,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    watches: Sequence[Watch],
) -> Identity:
    """Return what a checkpoint must be of, each part under the name that a message gives it."""
    specs = [judged.spec for judged in evaluation_set.metrics]
    files = {spec.metric.rpartition(":")[0] for spec in specs if is_entry_point(spec.metric)}
    quantized = hashlib.sha256()
    for model in models.quantized.values():
        quantized.update(model.sha256.encode())
    return {
        "the float model": models.float_model.sha256,
        "the quantized model": quantized.hexdigest(),
        "the evaluation data": evaluation_set.dataset.digest(),
        "the number of samples": str(settings.samples),
        "the batch size": str(evaluation_set.batch_size),
        "the image settings": json.dumps(asdict(image)),
        "the metrics": repr(specs),
        "the metrics' code": repr(
            sorted((file, sha256_file(Path(file))) for file in files if file.endswith(".py"))
        ),
        "--thumbnails": repr([watch.identity for watch in watches]),
        "with_pytorch": str(settings.with_pytorch),
        "the version of a library": repr(sorted(models.versions.items())),
    }
