"""One pass of all models over the evaluation set, from the last checkpoint on."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from ptq_cli.calibdata.dataset.batches import checked
from ptq_cli.calibdata.dataset.decode_ahead import decoded_ahead
from ptq_cli.calibdata.dataset.selection import WHOLE, Selection
from ptq_cli.calibdata.text.tokenizer import TextTokenizer
from ptq_cli.calibration.loaded_run import LoadedRun, load_run
from ptq_cli.core.entry_points import is_entry_point
from ptq_cli.core.errors import UsageError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.read_files import sha256_file
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.free_states import FORCED, FreeStates
from ptq_cli.evaluation.generation import Continued, compared_tokens, continued_prompts
from ptq_cli.evaluation.runs.changed_classes import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluation, Evaluator
from ptq_cli.evaluation.runs.run_models import Run, Runs, StreamRuns, run_evaluator, samples_first
from ptq_cli.evaluation.runs.sample_axes import Axis, axis_before
from ptq_cli.latency.served_latency import require_served_batch
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.evaluation.evaluation_checkpoint import WORK, Identity, continued, write_if_due
from ptq_cli.pipeline.evaluation.evaluation_data import (
    EvaluationSet,
    MeasuredSet,
    fit_evaluation,
    output_axes,
)
from ptq_cli.pipeline.evaluation.last_evaluation import with_exported, with_remembered_evaluation
from ptq_cli.pipeline.exporting.exported_file import (
    Pair,
    as_exported,
    quantized_metadata,
    quantized_path,
    require_origin,
    with_ranges_of,
)
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import EvaluationSettings, ImageSettings, ModelSettings
from ptq_cli.runtime.engine import Engine, OpenedModel
from ptq_cli.runtime.engine_registry import ReopenedModel
from ptq_cli.runtime.onnxruntime_engine import ONNX_RUNTIME
from ptq_cli.runtime.session import Session
from ptq_cli.setup.carried import carry_notes, with_states
from ptq_cli.setup.float_model import open_source
from ptq_cli.setup.output_checks import (
    input_files,
    library_versions,
    plugin_versions,
    report_outputs,
    require_free_outputs,
    require_outputs,
)
from ptq_cli.setup.resolve import Request, Resolved, open_data
from ptq_cli.setup.resumable import NO_CHECKPOINTS, Checkpoints
from ptq_cli.setup.run_directory import RunDirectory


@dataclass(frozen=True)
class EvaluatedModels:
    """The models of an evaluation.

    Attributes:
        quantized: the quantized ones by the name of their file, serialized.
        engines: the runtime of each; ONNX Runtime of those that are not named.
    """

    float_model: StoredModel
    quantized: Mapping[str, StoredModel]
    engines: Mapping[str, Engine] = field(default_factory=dict)

    def opened(self, name: str, threads: int) -> OpenedModel:
        """Return a quantized model ready to run; of large models one at a time is in memory."""
        model, engine = self.quantized[name], self.engines.get(name, ONNX_RUNTIME)
        if self.float_model.is_apart:
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
    watches: Sequence[ChangeCollector] = (),
) -> tuple[Evaluation, ...]:
    """Run all models over the evaluation set once, and return what was measured of each quantized one.

    There is one new watch for each quantized model, which sees its outputs too.
    """
    tell = teller(progress)
    opened = open_pass(resolved, models, evaluation_set, progress, watches, run.path)
    dataset, path = evaluation_set.dataset, run.evaluation_checkpoint
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
        checkpoints = Checkpoints(path, WORK, resolved.recipe.runtime.checkpoint_every, tell)
    batches = checked(dataset.batches(evaluation_set.batch_size, Selection(WHOLE, evaluator.batches)))
    # Closed on an error, too: the thread that decodes would otherwise wait for a reader for ever.
    with closing(decoded_ahead(batches)) as decoded:
        run_evaluator(
            evaluator,
            opened.runs,
            decoded,
            total=dataset.count,
            progress=progress,
            after_batch=partial(write_if_due, checkpoints, evaluator, opened.identity)
            if checkpoints
            else None,
        )
    found = evaluations_of(evaluator, evaluation_set.outputs, opened.axes)
    how = evaluation_set.continuation
    if how is None:
        return found
    prompts = continued_prompts(how, opened.runs, dataset, progress)
    return _with_generations(found, prompts, resolved.recipe.text.tokenizer)


def _with_generations(
    evaluations: Sequence[Evaluation], prompts: Sequence[Continued], tokenizer: str | None
) -> tuple[Evaluation, ...]:
    """Return evaluations with how the prompts were continued, as texts if there is a tokenizer."""
    text_of = TextTokenizer(tokenizer).text_of if tokenizer is not None else None
    # Texts are named by their files: the report is to be the same wherever its folder lies.
    named = [replace(item, prompt=_as_seen(item.prompt)) for item in prompts]
    compared = [compared_tokens(named, index, text_of) for index in range(len(evaluations))]
    return tuple(
        replace(item, measurements=(*item.measurements, measured), generation=generation)
        for item, (measured, generation) in zip(evaluations, compared, strict=True)
    )


def _as_seen(name: str) -> str:
    return relative_location(name, Path.cwd()) if Path(name).is_absolute() else name


def teller(progress: ProgressCallback) -> Callable[[str], None]:
    """Return what tells a note."""
    return lambda note: progress(Progress("evaluate", 0, None, note))


def open_pass(
    resolved: Resolved,
    models: EvaluatedModels,
    evaluation_set: EvaluationSet,
    progress: ProgressCallback,
    watches: Sequence[ChangeCollector],
    folder: Path,
) -> OpenedPass:
    """Open the models, and find out where the samples are in their outputs."""
    recipe, settings, machine = resolved.recipe, resolved.recipe.evaluation, resolved.machine
    for note in evaluation_set.notes:
        teller(progress)(note)
    # Of large models one at a time is in memory.
    opened = ReopenedModel if models.float_model.is_apart else Session
    runs = Runs(
        opened(models.float_model, threads=machine.threads).run,
        tuple(models.opened(name, machine.threads).run for name in models.quantized),
        _pytorch_run(recipe.model) if settings.with_pytorch else None,
    )
    axes = _axes(runs, evaluation_set)
    measured = MeasuredSet.of(evaluation_set)
    return OpenedPass(
        runs=_stream_runs(runs, axes, evaluation_set)
        if evaluation_set.carries
        else _samples_first(runs, axes),
        axes=axes,
        identity=pass_identity(settings, recipe.image, models, measured, watches, folder),
        make=evaluator_maker(models, measured, watches, with_pytorch=settings.with_pytorch),
    )


def evaluations_of(
    evaluator: Evaluator, outputs: Sequence[str], axes: Sequence[Axis]
) -> tuple[Evaluation, ...]:
    """Return what was measured of each quantized model, with axes as the models' outputs have them."""
    by_output = dict(zip(outputs, axes, strict=True))
    return tuple(
        replace(found, measurements=tuple(_as_in_the_file(item, by_output) for item in found.measurements))
        for found in evaluator.evaluations()
    )


def _axes(runs: Runs, evaluation_set: EvaluationSet) -> tuple[Axis, ...]:
    outputs = len(evaluation_set.outputs)
    # An export noted them; probing the model again would cost a run, and a constant output shows no axis.
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


def _stream_runs(runs: Runs, axes: tuple[Axis, ...], evaluation_set: EvaluationSet) -> StreamRuns:
    carries, outputs = evaluation_set.carries, evaluation_set.outputs
    own = tuple(FreeStates(carries, outputs) for _ in runs.quantized)
    return StreamRuns(runs.of_float, runs.quantized, own=own, axes=axes)


def _as_in_the_file(item: Measurement, axes: Mapping[str, Axis]) -> Measurement:
    """Return a measurement that names the axis of its channel as the model's output has it."""
    if item.channel is None:
        return item
    axis = axis_before(item.channel.axis, axes.get(item.output or ""))
    return replace(item, channel=replace(item.channel, axis=axis))


def evaluator_maker(
    models: EvaluatedModels, measured: MeasuredSet, watches: Sequence[ChangeCollector], *, with_pytorch: bool
) -> Callable[[], Evaluator]:
    """Return what makes an evaluator of these models."""
    several = len(models.quantized) > 1
    names = [f"quantized model '{name}'" if several else "quantized model" for name in models.quantized]
    carried = {item.output: item.state.name for item in measured.carries}
    forced = [f"{name} {FORCED}" for name in names] if carried else []
    return lambda: Evaluator(
        measured.outputs,
        measured.metrics,
        [*names, *forced],
        with_pytorch=with_pytorch and not carried,
        class_names=measured.class_names,
        watches=watches,
        carried=carried,
        varying=measured.varying,
    )


def _pytorch_run(settings: ModelSettings) -> Run:
    source = open_source(settings)
    return lambda inputs: source.run(inputs) or ()


def pass_identity(
    settings: EvaluationSettings,
    image: ImageSettings,
    models: EvaluatedModels,
    measured: MeasuredSet,
    watches: Sequence[ChangeCollector],
    folder: Path,
) -> Identity:
    """Return what an evaluation is of, each part under the name that a message gives it.

    Paths of code begin at ``folder``, so that it can move with the run.
    """
    specs = [judged.spec for judged in measured.metrics]
    # The code of a metric belongs to the identity: its file may be edited between two runs.
    files = {spec.metric.rpartition(":")[0] for spec in specs if is_entry_point(spec.metric)}
    # Relative, so that shards of machines with other folders are of the same evaluation.
    named = [replace(spec, metric=relative_location(spec.metric, folder)) for spec in specs]
    quantized = hashlib.sha256()
    for model in models.quantized.values():
        quantized.update(model.sha256.encode())
    return {
        "the float model": models.float_model.sha256,
        "the quantized model": quantized.hexdigest(),
        "the evaluation data": measured.data_digest,
        "the number of samples": str(settings.samples),
        # Activations and sums of floats may depend on it in their last bits.
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
        "run.thumbnails": repr([watch.identity for watch in watches]),
        "with_pytorch": str(settings.with_pytorch),
        "what is carried": " ".join(map(str, measured.carries)),
        "the version of a library": repr(sorted(models.versions.items())),
    }


# The models of an evaluation and its data, found to belong together before anything runs.


@dataclass(frozen=True, kw_only=True)
class OpenedModels:
    """The models of an evaluation, found to belong together.

    Attributes:
        runs: where the report of each quantized model goes.
        note: what data the run remembers, if it is evaluated on those; otherwise empty.
    """

    loaded: LoadedRun
    paths: tuple[Path, ...]
    pairs: tuple[Pair, ...]
    runs: tuple[RunDirectory, ...]
    note: str = ""

    def resolved(self, run: RunDirectory) -> Resolved:
        """Return the recipe of the evaluation, with what the run's model was exported with."""
        found = self.loaded.resolved
        return found.with_recipe(with_exported(found.recipe, run))


def open_models(request: Request, run: RunDirectory, quantized_models: Sequence[Path]) -> OpenedModels:
    """Return the models of an evaluation, if they belong together."""
    loaded = load_run(request, run)
    # The last evaluation was of one model; of several none of them decides the data.
    asked = quantized_models[0] if len(quantized_models) == 1 else None
    resolved, note = with_remembered_evaluation(loaded.resolved, request, run, asked)
    loaded = loaded._replace(resolved=resolved)
    inputs = input_files(loaded.resolved.recipe)
    require_outputs(run, inputs)
    paths = [quantized_path(run, named) for named in quantized_models] or [quantized_path(run, None)]
    runs = _report_runs(run, inputs, paths)
    pairs = tuple(Pair(loaded.float_model, read_model(path), path.name) for path in paths)
    for pair, path in zip(pairs, paths, strict=True):
        origin = quantized_metadata(pair.quantized_model, path)
        require_origin(origin, loaded.calibration, path)
        exported = as_exported(loaded.resolved, origin, path)
        with_ranges_of(exported.recipe, origin, loaded.calibration, path.name)
    require_served_batch(loaded.resolved, loaded.graph)
    return OpenedModels(loaded=loaded, paths=tuple(paths), pairs=pairs, runs=tuple(runs), note=note)


def open_evaluation_set(opened: OpenedModels, progress: ProgressCallback) -> EvaluationSet:
    """Return the evaluation data, fitted to the models."""
    resolved = opened.loaded.resolved
    if opened.note:
        progress(Progress("evaluate", 0, None, opened.note))
    reading = resolved.strict_reading(labels=True)
    dataset = open_data(resolved.recipe.evaluation, reading, "evaluation", "--eval-data")
    loaded = opened.loaded
    dataset = with_states(dataset, resolved.recipe.data, loaded.graph, loaded.float_model)
    for note in carry_notes(dataset, resolved.recipe.data):
        teller(progress)(note)
    return fit_evaluation(dataset, resolved.recipe, loaded.graph)


def _report_runs(run: RunDirectory, inputs: Mapping[str, Path], paths: Sequence[Path]) -> list[RunDirectory]:
    """Return where the report of each model goes: the run directory, or of several a folder each in it."""
    if len(paths) == 1:
        return [run]
    names = [path.stem for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two of the models have the name '{name}', so their reports would be in the same folder",
                hint="give one of the files another name",
            )
    runs = [run.of_model(path) for path in paths]
    # Before anything runs: a report that cannot be written would waste the whole evaluation.
    require_free_outputs([file for own in runs for file in report_outputs(own)], inputs)
    return runs
