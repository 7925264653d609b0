"""The models of an evaluation and its data, found to belong together before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.calibration.loaded_run import LoadedRun, load_run
from ptq_cli.core.errors import UsageError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.latency.served_latency import require_served_batch
from ptq_cli.models.files.stored import read_model
from ptq_cli.pipeline.evaluation.evaluation_set import EvaluationSet, fit_evaluation
from ptq_cli.pipeline.evaluation.opened_pass import STAGE
from ptq_cli.pipeline.exporting.exported_file import (
    Pair,
    as_exported,
    quantized_metadata,
    quantized_path,
    require_origin,
    with_ranges_of,
)
from ptq_cli.setup.carried import carry_notes, with_states
from ptq_cli.setup.output_checks import input_files, report_outputs, require_free_outputs, require_outputs
from ptq_cli.setup.remembered_data import with_exported, with_remembered_evaluation
from ptq_cli.setup.resolve import Request, Resolved, open_data
from ptq_cli.setup.run_directory import RunDirectory


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
    pairs = tuple(Pair(loaded.float_model, read_model(path), path.name) for path in paths)
    _require_free_reports(run, inputs, pairs)
    for pair, path in zip(pairs, paths, strict=True):
        origin = quantized_metadata(pair.quantized_model, path)
        require_origin(origin, loaded.calibration, path)
        exported = as_exported(loaded.resolved, origin, path)
        with_ranges_of(exported.recipe, origin, loaded.calibration, path.name)
    require_served_batch(loaded.resolved, loaded.graph)
    return OpenedModels(loaded=loaded, paths=tuple(paths), pairs=pairs, note=note)


def open_evaluation_set(opened: OpenedModels, progress: ProgressCallback) -> EvaluationSet:
    """The evaluation data, fitted to the models."""
    resolved = opened.loaded.resolved
    if opened.note:
        progress(Progress(STAGE, 0, None, opened.note))
    reading = resolved.strict_reading(labels=True)
    dataset = open_data(resolved.recipe.evaluation, reading, "evaluation", "--eval-data")
    loaded = opened.loaded
    dataset = with_states(dataset, resolved.recipe.data, loaded.graph, loaded.float_model)
    for note in carry_notes(dataset, resolved.recipe.data):
        progress(Progress(STAGE, 0, None, note))
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
