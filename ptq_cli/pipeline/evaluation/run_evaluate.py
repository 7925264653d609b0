"""``evaluate``: the float and the quantized models over the evaluation set, the reports, and the verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ptq_cli.calibdata.images.thumbnails import thumbnail
from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.errors import UsageError
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.models.stored import StoredModel, read_model, release
from ptq_cli.pipeline.calibration.provenance import load_run
from ptq_cli.pipeline.evaluation.evaluation_checkpoint import discard_evaluation_checkpoint
from ptq_cli.pipeline.evaluation.evaluation_data import EvaluationSet, fit_evaluation
from ptq_cli.pipeline.evaluation.one_pass import EvaluatedModels, evaluate_pass
from ptq_cli.pipeline.evaluation.page_evidence import Material
from ptq_cli.pipeline.evaluation.report_files import report_files, with_exported
from ptq_cli.pipeline.evaluation.served_latency import (
    QuantizedFile,
    require_served_batch,
    served_latency,
)
from ptq_cli.pipeline.evaluation.tuned_ladder import tuned_ladder
from ptq_cli.pipeline.exporting.exported_file import (
    Pair,
    amax_summary,
    as_exported,
    evaluated_layers,
    model_summary,
    plan_of,
    quantized_metadata,
    quantized_path,
    require_origin,
    with_ranges_of,
)
from ptq_cli.pipeline.exporting.tensor_settings import TensorRecipe, tensor_recipe
from ptq_cli.pipeline.run.output_checks import (
    input_files,
    report_outputs,
    require_free_outputs,
    require_outputs,
)
from ptq_cli.pipeline.run.reading import open_data
from ptq_cli.pipeline.run.resolve import Request, Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.locations import relative_location
from ptq_cli.report.comparison.regression import require_same_model
from ptq_cli.report.document.report_document import (
    CalibrationSummary,
    EvaluationSummary,
    LayerEntry,
    ModelSummary,
    Report,
)
from ptq_cli.report.document.times import Times
from ptq_cli.report.evaluation.changed_classes import ChangeCollector
from ptq_cli.report.evaluation.evaluator import Evaluation
from ptq_cli.report.gate.decide_gates import decide
from ptq_cli.report.text.result_warnings import result_warnings
from ptq_cli.runtime.engines.engine_registry import measuring_engine


@dataclass(frozen=True)
class EvaluationResult:
    """The result of ``evaluate`` of one quantized model.

    Attributes:
        report: all of it, with the verdict.
        run: where ``report.json``, ``report.md``, ``report.html`` and ``junit.xml`` are.
    """

    report: Report
    run: RunDirectory


@dataclass(frozen=True)
class Evaluated:
    """An evaluation that is not written yet; ``files`` is the content of each file to write."""

    result: EvaluationResult
    files: Mapping[Path, bytes]


def run_evaluate(
    request: Request,
    run: RunDirectory,
    quantized_model: Path | None = None,
    progress: ProgressCallback = silent,
    *,
    restart: bool = False,
    thumbnails: bool = False,
) -> EvaluationResult:
    """Evaluate the float and the quantized model in one pass, and write the report.

    Args:
        request: evaluation data, metrics and limits.
        run: the run directory.
        quantized_model: the model to judge, or None for the one in the run directory.
        progress: is called after each batch.
        restart: start from the beginning even if an earlier evaluation could be continued.
        thumbnails: show the samples that change their class on the page, if they are images.

    Raises:
        PtqError: as ``run_evaluations`` does.
    """
    models = [quantized_model] if quantized_model is not None else []
    return run_evaluations(request, run, models, progress, restart=restart, thumbnails=thumbnails)[0]


def run_evaluations(
    request: Request,
    run: RunDirectory,
    quantized_models: Sequence[Path],
    progress: ProgressCallback = silent,
    *,
    restart: bool = False,
    thumbnails: bool = False,
) -> tuple[EvaluationResult, ...]:
    """Evaluate the float model and quantized ones in one pass, and write a report of each.

    Args:
        request: evaluation data, metrics and limits.
        run: the run directory.
        quantized_models: the models to judge; none for the one in the run directory. The reports of several
            are in a folder each, named as the model's file.
        progress: is called after each batch.
        restart: start from the beginning even if an earlier evaluation could be continued.
        thumbnails: show the samples that change their class on the page, if they are images.

    Raises:
        MissingStageError: nothing was calibrated or exported.
        StaleCalibrationError: the models or settings do not belong together.
        LabelError: a metric needs labels and the data have none, or one is out of range.
        MetricError: a metric does not fit the model's output, or an output holds NaN.
        GateError: a limit names a metric that is not computed.
        UsageError: two models have the same name.
    """
    resolved, calibration, float_model, graph = load_run(request, run)
    recipe = resolved.recipe
    inputs = input_files(recipe)
    require_outputs(run, inputs)
    paths = [quantized_path(run, named) for named in quantized_models] or [quantized_path(run, None)]
    runs = _report_runs(run, inputs, paths)
    pairs = [Pair(float_model, read_model(path), path.name) for path in paths]
    dataset = open_data(recipe.evaluation, resolved.reading, "evaluation", "--eval-data")
    for pair, path in zip(pairs, paths, strict=True):
        origin = quantized_metadata(pair.quantized_model, path)
        require_origin(origin, calibration, path)
        with_ranges_of(as_exported(resolved, origin, path).recipe, origin, calibration, path.name)
    evaluation_set = fit_evaluation(dataset, recipe, graph)
    require_served_batch(resolved, graph)
    if restart:
        discard_evaluation_checkpoint(run.evaluation_checkpoint)
    evaluated = make_evaluations(
        resolved.with_recipe(with_exported(recipe, run)),
        calibration,
        pairs,
        evaluation_set,
        run,
        runs,
        progress,
        thumbnails=thumbnails,
    )
    write_together({path: content for item in evaluated for path, content in item.files.items()})
    discard_evaluation_checkpoint(run.evaluation_checkpoint)
    return tuple(item.result for item in evaluated)


def make_evaluations(
    resolved: Resolved,
    calibration: Calibration,
    pairs: Sequence[Pair],
    evaluation_set: EvaluationSet,
    run: RunDirectory,
    runs: Sequence[RunDirectory],
    progress: ProgressCallback,
    *,
    thumbnails: bool = False,
    plan: Plan | None = None,
) -> tuple[Evaluated, ...]:
    """Evaluate the float model with each quantized one; nothing but checkpoints is written.

    Args:
        resolved: the recipe, the target and the machine.
        calibration: that the quantized models were made from.
        pairs: the float model, the same in each, and a quantized one.
        evaluation_set: the data and metrics.
        run: where checkpoints are.
        runs: where the report of each quantized model goes.
        progress: is called after each batch.
        thumbnails: show the samples that change their class on the page, if they are images.
        plan: of the float model for the target, where one was made already; otherwise it is made here.

    Raises:
        PtqError: as ``run_evaluations`` does.
    """
    recipe, float_model = resolved.recipe, pairs[0].float_model
    for pair in pairs:
        if evaluation_set.baseline is not None:  # decide would say the same, but only after all the work
            require_same_model(model_summary(recipe.model.path, run, pair), evaluation_set.baseline.model)
    judged = _judged(resolved, pairs, plan)
    engines = {item.pair.quantized_name: measuring_engine(item.exported.target) for item in judged}
    quantized = {pair.quantized_name: pair.quantized_model for pair in pairs}
    evaluated = EvaluatedModels(float_model, quantized, engines)
    paint = partial(thumbnail, settings=recipe.image) if thumbnails else None
    changed = [ChangeCollector(paint) for _ in pairs]
    evaluations = evaluate_pass(resolved, evaluated, evaluation_set, run, progress, changed)
    files = [QuantizedFile(item.pair.quantized_model, item.exported.target, item.layers) for item in judged]
    times = served_latency(resolved, float_model, files, run, progress)
    found = []
    class_names = evaluation_set.dataset.class_names
    work = _work(float_model)
    for item, own, evaluation, timed, collector in zip(
        judged, runs, evaluations, times, changed, strict=True
    ):
        pair, name = item.pair, item.pair.quantized_name
        own_recipe = with_ranges_of(item.exported.recipe, item.origin, calibration, name)
        models = model_summary(recipe.model.path, run, pair)
        measured = _report(models, item, calibration, evaluation_set, evaluation, timed, evaluated.versions)
        sizes = (float_model.size, pair.quantized_model.size)
        found_of = result_warnings(sizes, measured.layers, work, measured.metrics)
        measured = replace(measured, warnings=found_of, ladder=tuned_ladder(run, pair.quantized_model))
        report = decide(measured, recipe.gate, evaluation_set.baseline)
        material = partial(_material, item, calibration, tensor_recipe(own_recipe))
        changes = collector.changes(class_names)
        found.append(
            Evaluated(
                EvaluationResult(report, own),
                report_files(report, own_recipe, material, item.origin, changes, own),
            )
        )
    return tuple(found)


def _rules_of(resolved: Resolved) -> tuple[str, bool]:
    """Return what tells the rules of one quantized model from those of another."""
    return resolved.recipe.quantization.target, resolved.target.runtime_operators


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """A quantized model, and what its file says of it.

    Attributes:
        pair: it and the float model.
        origin: its metadata.
        exported: the recipe and the target that it was exported with.
        plan: of the float model for that target.
        layers: where each layer runs.
    """

    pair: Pair
    origin: Mapping[str, str]
    exported: Resolved
    plan: Plan
    layers: tuple[LayerEntry, ...]


def _judged(resolved: Resolved, pairs: Sequence[Pair], plan: Plan | None) -> list[_Judged]:
    plans = {} if plan is None else {_rules_of(resolved): plan}
    found = []
    for pair in pairs:
        path = Path(pair.quantized_name)
        origin = quantized_metadata(pair.quantized_model, path)
        exported = as_exported(resolved, origin, path)
        named = _rules_of(exported)
        if named not in plans:
            plans[named] = plan_of(pair.float_model, exported.target)
        layers = evaluated_layers(plans[named], origin, pair.quantized_name)
        found.append(_Judged(pair=pair, origin=origin, exported=exported, plan=plans[named], layers=layers))
    return found


def _work(float_model: StoredModel) -> Mapping[str, int | None]:
    graph = float_model.load()
    counts = multiply_accumulates(graph).counts
    release(graph)
    return counts


def _report(
    models: ModelSummary,
    judged: _Judged,
    calibration: Calibration,
    evaluation_set: EvaluationSet,
    evaluation: Evaluation,
    times: Times,
    versions: dict[str, str],
) -> Report:
    dataset, stored = evaluation_set.dataset, calibration.provenance
    return Report(
        times=times,
        versions=versions,
        model=models,
        target=judged.plan.target,
        amax=amax_summary(judged.origin, models.quantized_model.name),
        calibration=CalibrationSummary(stored.method, stored.samples, stored.data),
        evaluation=EvaluationSummary(
            relative_location(dataset.source, Path.cwd()),
            evaluation.samples,
            dataset.digest(),
            "step" if evaluation_set.is_step else "sample",
        ),
        metrics=evaluation.measurements,
        layers=judged.layers,
        gates=(),
    )


def _material(judged: _Judged, calibration: Calibration, recipe: TensorRecipe) -> Material:
    return Material(
        float_model=judged.pair.float_model.load(),
        quantized_model=judged.pair.quantized_model.load(),
        calibration=calibration,
        plan=judged.plan,
        target=judged.exported.target,
        recipe=recipe,
    )


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
