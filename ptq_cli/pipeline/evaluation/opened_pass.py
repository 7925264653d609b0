"""Models and data of an evaluation, found to belong together, and the pass over the set that begins."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ptq_cli.calibration.provenance import LoadedRun, load_run
from ptq_cli.core.entry_points import is_entry_point
from ptq_cli.core.errors import UsageError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.read_files import sha256_file
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.free_states import FORCED, FreeStates
from ptq_cli.evaluation.runs.comparisons import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluation, Evaluator
from ptq_cli.evaluation.runs.model_outputs import Axis, axis_before
from ptq_cli.evaluation.runs.run_models import Runs, StreamRuns, samples_first
from ptq_cli.latency.served_latency import require_served_batch
from ptq_cli.models.files.stored import StoredModel, read_model
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet, SetSummary, fit_evaluation, output_axes
from ptq_cli.pipeline.evaluation.quantized_models import EvaluatedModels
from ptq_cli.pipeline.exported_file import (
    Pair,
    as_exported,
    quantized_metadata,
    quantized_path,
    require_origin,
    with_ranges_of,
)
from ptq_cli.pipeline.statement import statement_beside
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.schema import Recipe
from ptq_cli.setup.output_checks import input_files, report_outputs, require_free_outputs, require_outputs
from ptq_cli.setup.parts import Work
from ptq_cli.setup.remembered_data import with_exported, with_remembered_evaluation
from ptq_cli.setup.resolve import Request, Resolved, open_data
from ptq_cli.setup.run_directory import RunDirectory, plugin_versions
from ptq_cli.setup.served_inputs import carry_notes, with_states

EVALUATE_STAGE = "evaluate"

# What an evaluation is of, by name: models, data, metrics. A checkpoint of another is ignored.
_Identity = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class OpenedPass:
    """A pass over the evaluation set that is ready to begin.

    Attributes:
        runs: the models, with the samples of each output on axis 0.
        axes: where the samples of each output are in the model's output.
    """

    runs: Runs
    axes: tuple[Axis, ...]
    identity: _Identity
    make: Callable[[], Evaluator]


def open_pass(
    work: Work, models: EvaluatedModels, evaluation_set: EvaluationSet, watches: Sequence[ChangeCollector]
) -> OpenedPass:
    """Open the models, and find out where the samples are in their outputs."""
    recipe, threads = work.resolved.recipe, work.resolved.machine.threads
    for note in evaluation_set.notes:
        work.tell(note, EVALUATE_STAGE)
    runs = Runs(
        models.opened_float(threads).run,
        tuple(models.opened(name, threads).run for name in models.quantized),
    )
    axes, summary = _axes(runs, evaluation_set), SetSummary.of(evaluation_set)
    return OpenedPass(
        runs=_stream_runs(runs, axes, evaluation_set)
        if evaluation_set.carries
        else _samples_first(runs, axes),
        axes=axes,
        identity=pass_identity(recipe, models, summary, work.run.path),
        make=evaluator_maker(models, summary, watches),
    )


def evaluations_of(
    evaluator: Evaluator, outputs: Sequence[str], axes: Sequence[Axis]
) -> tuple[Evaluation, ...]:
    """Measurements of each quantized model, with axes as the models' outputs have them."""
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
    return Runs(samples_first(runs.of_float, axes), tuple(samples_first(run, axes) for run in runs.quantized))


def _stream_runs(runs: Runs, axes: tuple[Axis, ...], evaluation_set: EvaluationSet) -> StreamRuns:
    carries, outputs = evaluation_set.carries, evaluation_set.outputs
    own = tuple(FreeStates(carries, outputs) for _ in runs.quantized)
    return StreamRuns(runs.of_float, runs.quantized, own=own, axes=axes)


def _as_in_the_file(item: Measurement, axes: Mapping[str, Axis]) -> Measurement:
    """A measurement that names the axis of its channel as the model's output has it."""
    if item.channel is None:
        return item
    axis = axis_before(item.channel.axis, axes.get(item.output or ""))
    return replace(item, channel=replace(item.channel, axis=axis))


def evaluator_maker(
    models: EvaluatedModels, measured: SetSummary, watches: Sequence[ChangeCollector]
) -> Callable[[], Evaluator]:
    """The function that makes evaluators of these models."""
    several = len(models.quantized) > 1
    names = [f"quantized model '{name}'" if several else "quantized model" for name in models.quantized]
    carried = {item.output: item.state.name for item in measured.carries}
    forced = [f"{name} {FORCED}" for name in names] if carried else []
    return lambda: Evaluator(
        measured.outputs,
        measured.metrics,
        [*names, *forced],
        class_names=measured.class_names,
        watches=watches,
        carried=carried,
        varying=measured.varying,
    )


def pass_identity(recipe: Recipe, models: EvaluatedModels, measured: SetSummary, folder: Path) -> _Identity:
    """Identity of an evaluation, each part under the name that a message gives it.

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
        "the number of samples": str(recipe.evaluation.samples),
        # Activations and sums of floats may depend on it in their last bits.
        "the batch size": str(measured.batch_size),
        "the image settings": json.dumps(asdict(recipe.image)),
        "the metrics": repr(named),
        "the plug-ins": repr(sorted(plugin_versions(Recipe(), specs).items())),
        "the metrics' code": repr(
            sorted(
                (relative_location(file, folder), sha256_file(Path(file)))
                for file in files
                if file.endswith(".py")
            )
        ),
        "what is carried": " ".join(map(str, measured.carries)),
        "the version of a library": repr(sorted(models.versions.items())),
    }


@dataclass(frozen=True, kw_only=True)
class OpenedModels:
    """The models of an evaluation, found to belong together.

    Attributes:
        note: what data the run remembers, if it is evaluated on those; otherwise empty.
    """

    loaded: LoadedRun
    paths: tuple[Path, ...]
    pairs: tuple[Pair, ...]
    note: str = ""

    def resolved(self, run: RunDirectory) -> Resolved:
        """The recipe of the evaluation, with what the run's model was exported with."""
        found = self.loaded.resolved
        return found.with_recipe(with_exported(found.recipe, run))


def report_runs(run: RunDirectory, pairs: Sequence[Pair]) -> list[RunDirectory]:
    """Where the report of each model goes: the run directory, or of several a folder each in it."""
    return [run] if len(pairs) == 1 else [run.of_model(Path(pair.quantized_name)) for pair in pairs]


def open_models(request: Request, run: RunDirectory, quantized_models: Sequence[Path]) -> OpenedModels:
    """The models of an evaluation, if they belong together."""
    loaded = load_run(request, run)
    # The last evaluation was of one model; of several none of them decides the data.
    asked = quantized_models[0] if len(quantized_models) == 1 else None
    resolved, note = with_remembered_evaluation(loaded.resolved, run, asked)
    loaded = loaded._replace(resolved=resolved)
    inputs = input_files(loaded.resolved.recipe)
    require_outputs(run, inputs)
    paths = [quantized_path(run, named) for named in quantized_models] or [quantized_path(run, None)]
    pairs = tuple(_pair(loaded.float_model, path) for path in paths)
    _require_free_reports(run, inputs, pairs)
    for pair, path in zip(pairs, paths, strict=True):
        origin = quantized_metadata(pair.quantized_model, path)
        require_origin(origin, loaded.calibration, path)
        exported = as_exported(loaded.resolved, origin, path)
        with_ranges_of(exported.recipe, origin, loaded.calibration, path.name)
    require_served_batch(loaded.resolved, loaded.graph)
    return OpenedModels(loaded=loaded, paths=tuple(paths), pairs=pairs, note=note)


def _pair(float_model: StoredModel, path: Path) -> Pair:
    quantized = read_model(path)
    return Pair(float_model, quantized, path.name, statement_beside(path, quantized))


def open_evaluation_set(opened: OpenedModels, progress: ProgressCallback) -> EvaluationSet:
    """The evaluation data, fitted to the models."""
    resolved = opened.loaded.resolved
    if opened.note:
        progress(Progress(EVALUATE_STAGE, 0, None, opened.note))
    reading = resolved.strict_reading(labels=True)
    dataset = open_data(resolved.recipe.evaluation, reading, "evaluation", "--eval-data")
    loaded = opened.loaded
    dataset = with_states(dataset, resolved.recipe.data, loaded.graph, loaded.float_model)
    for note in carry_notes(dataset, resolved.recipe.data):
        progress(Progress(EVALUATE_STAGE, 0, None, note))
    return fit_evaluation(dataset, resolved.recipe, loaded.graph)


def _require_free_reports(run: RunDirectory, inputs: Mapping[str, Path], pairs: Sequence[Pair]) -> None:
    """Refuse reports of several models that cannot be written: it would waste the whole evaluation."""
    if len(pairs) == 1:
        return
    names = [Path(pair.quantized_name).stem for pair in pairs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two of the models have the name '{name}', so their reports would be in the same folder",
                hint="give one of the files another name",
            )
    require_free_outputs([file for own in report_runs(run, pairs) for file in report_outputs(own)], inputs)
