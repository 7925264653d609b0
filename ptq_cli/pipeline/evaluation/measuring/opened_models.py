"""The models of an evaluation and its data, found to belong together before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.core.errors import UsageError
from ptq_cli.core.work.progress import Progress, ProgressCallback
from ptq_cli.models.files.stored import read_model
from ptq_cli.pipeline.calibration.loaded_run import LoadedRun, load_run
from ptq_cli.pipeline.evaluation.last_evaluation import with_remembered_evaluation
from ptq_cli.pipeline.evaluation.measuring.evaluation_data import EvaluationSet, fit_evaluation
from ptq_cli.pipeline.evaluation.measuring.exported_recipe import with_exported
from ptq_cli.pipeline.evaluation.measuring.served_latency import require_served_batch
from ptq_cli.pipeline.exporting.exported_file import (
    Pair,
    as_exported,
    quantized_metadata,
    quantized_path,
    require_origin,
    with_ranges_of,
)
from ptq_cli.pipeline.run.output_checks import (
    input_files,
    report_outputs,
    require_free_outputs,
    require_outputs,
)
from ptq_cli.pipeline.run.reading import open_data
from ptq_cli.pipeline.run.resolve import Request, Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class OpenedModels:
    """The models of an evaluation, found to belong together.

    Attributes:
        loaded: what the run holds.
        paths: files of the quantized models.
        pairs: the float model, the same in each, and a quantized one.
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
    """Return the models of an evaluation, if they belong together.

    Raises:
        MissingStageError: nothing was calibrated or exported.
        StaleCalibrationError: the models or settings do not belong together.
        UsageError: two models have the same name.
    """
    loaded = load_run(request, run)
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
    """Return the evaluation data, fitted to the models.

    Args:
        opened: the models.
        progress: is told which data the run remembers, if it is evaluated on those.

    Raises:
        PtqError: the data cannot be used, or a metric does not fit.
    """
    resolved = opened.loaded.resolved
    if opened.note:
        progress(Progress("evaluate", 0, None, opened.note))
    reading = resolved.strict_reading(labels=True)
    dataset = open_data(resolved.recipe.evaluation, reading, "evaluation", "--eval-data")
    return fit_evaluation(dataset, resolved.recipe, opened.loaded.graph)


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
    require_free_outputs([file for own in runs for file in report_outputs(own)], inputs)
    return runs
