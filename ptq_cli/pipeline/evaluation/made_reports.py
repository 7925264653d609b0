"""The reports of an evaluation: what was measured, with the latency, the gates and the page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from ptq_cli.calibdata.images.thumbnail import thumbnail
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.documents import to_json
from ptq_cli.core.errors import PtqError
from ptq_cli.core.progress import ProgressCallback
from ptq_cli.evaluation.decide_gates import decide
from ptq_cli.evaluation.document.details import Changes, Details
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.measurement import AccuracyLevel
from ptq_cli.evaluation.document.report_document import (
    NOTHING,
    CalibrationSummary,
    EvaluationSummary,
    LayerEntry,
    ModelSummary,
    Report,
    Saturation,
)
from ptq_cli.evaluation.proof.saturation import saturates_here, saturation_of
from ptq_cli.evaluation.report_changes import require_same_model
from ptq_cli.evaluation.runs.changed_classes import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluation
from ptq_cli.latency.served_latency import QuantizedFile, served_latency
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.files.storing import release
from ptq_cli.pipeline.evaluation.evaluation_data import MeasuredSet, accuracy_levels, other_levels
from ptq_cli.pipeline.evaluation.one_pass import EvaluatedModels
from ptq_cli.pipeline.evaluation.page_evidence import Material, tuned_ladder
from ptq_cli.pipeline.evaluation.report_page import earlier, make_page, report_markdown
from ptq_cli.pipeline.exporting.exported_file import (
    Pair,
    amax_summary,
    as_exported,
    evaluated_layers,
    model_summary,
    plan_of,
    quantized_metadata,
    with_ranges_of,
)
from ptq_cli.pipeline.exporting.written_metadata import quantizer_line
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.tensor_settings import TensorRecipe, tensor_recipe
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.metadata import QUANTIZERS
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.text.gates import report_to_junit
from ptq_cli.report.text.result_warnings import arithmetic_warnings, left_out_warnings, result_warnings
from ptq_cli.runtime.engine_registry import at_level, measuring_engine
from ptq_cli.setup.output_checks import plugin_versions
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import RunDirectory

# The files of a report: for programs, for a pull request, for a CI server, and as a page.


PLAIN = "the target's own quantizers"


def report_files(
    report: Report,
    recipe: Recipe,
    material: Callable[[], Material],
    origin: Mapping[str, str],
    changes: Changes | None,
    run: RunDirectory,
) -> dict[Path, bytes]:
    """Return the content of each file that tells of an evaluation."""
    material = cache(material)
    notes = tuple(not_reproduced(origin, material()))
    details = Details(report.created, report.model.quantized_model.sha256, notes, changes)
    settings = recipe_to_toml(recipe, run.path)
    others = earlier(run)
    page, _ = make_page(report, details, settings, material, run, others)
    return {
        run.report_json: to_json(report).encode(),
        run.report_markdown: report_markdown(report, others.devices_of(report)).encode(),
        run.junit: report_to_junit(report).encode(),
        run.report_html: page,
        run.report_recipe: settings.encode(),
        run.details: to_json(details).encode(),
    }


def not_reproduced(origin: Mapping[str, str], material: Material) -> Iterator[str]:
    """Say if the model was exported with other quantizers than the recipe has."""
    was, now = origin.get(QUANTIZERS, PLAIN), _quantizers(material)
    if now is not None and was != now:
        yield f"The model was exported with {was}, the recipe has {now}."


def _quantizers(material: Material) -> str | None:
    try:
        placement = place(
            material.float_model, material.plan, material.target, material.recipe, material.calibration
        )
    except PtqError:  # The page says why, in place of its histograms.
        return None
    if placement.is_plain:
        return PLAIN
    return quantizer_line(placement.weight_counts, placement.activation_counts)


@dataclass(frozen=True)
class EvaluationResult:
    """The result of ``evaluate`` of one quantized model."""

    report: Report
    run: RunDirectory


@dataclass(frozen=True)
class Evaluated:
    """An evaluation that is not written yet; ``files`` is the content of each file to write."""

    result: EvaluationResult
    files: Mapping[Path, bytes]


def _rules_of(resolved: Resolved) -> tuple[str, bool]:
    return resolved.recipe.quantization.target, resolved.target.runtime_operators


@dataclass(frozen=True, kw_only=True)
class JudgedModel:
    """A quantized model, and what its file says of it.

    Attributes:
        exported: the recipe and the target that it was exported with.
    """

    pair: Pair
    origin: Mapping[str, str]
    exported: Resolved
    plan: Plan
    layers: tuple[LayerEntry, ...]


def open_judged(
    resolved: Resolved,
    calibration: Calibration,
    run: RunDirectory,
    pairs: Sequence[Pair],
    measured: MeasuredSet,
    *,
    thumbnails: bool,
    plan: Plan | None = None,
) -> tuple[list[JudgedModel], EvaluatedModels, list[ChangeCollector]]:
    """Return quantized models as they are judged and run, each run with what notes the samples that change.

    A baseline of another model is refused as ``decide`` would, but before all the work.
    """
    if measured.baseline is not None:
        for pair in pairs:
            summary = model_summary(resolved.recipe.model.path, run, pair, calibration)
            require_same_model(summary, measured.baseline.model)
    judged = judged_models(resolved, pairs, plan)
    models = evaluated_models(judged)
    paint = partial(thumbnail, settings=resolved.recipe.image) if thumbnails else None
    return judged, models, [ChangeCollector(paint) for _ in models.quantized]


def judged_models(resolved: Resolved, pairs: Sequence[Pair], plan: Plan | None = None) -> list[JudgedModel]:
    """Return the quantized models with what their files say of them."""
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
        found.append(
            JudgedModel(pair=pair, origin=origin, exported=exported, plan=plans[named], layers=layers)
        )
    return found


def evaluated_models(judged: Sequence[JudgedModel]) -> EvaluatedModels:
    """Return the models of an evaluation, each with the runtime that it is measured with.

    Behind the quantized models come those with weights in blocks again, at their other accuracy level.
    """
    level = _level(judged)
    engines = {
        item.pair.quantized_name: at_level(
            measuring_engine(item.exported.target, item.exported.recipe.runtime.engine), level
        )
        for item in judged
    }
    quantized = {item.pair.quantized_name: item.pair.quantized_model for item in judged}
    others = other_levels(quantized, engines, level)
    return EvaluatedModels(
        judged[0].pair.float_model,
        {**quantized, **{item.key: quantized[item.name] for item in others}},
        {**engines, **{item.key: item.engine for item in others}},
    )


def _level(judged: Sequence[JudgedModel]) -> int | None:
    return judged[0].exported.recipe.runtime.accuracy_level


def _levels(
    judged: Sequence[JudgedModel], evaluations: Sequence[Evaluation]
) -> dict[str, tuple[AccuracyLevel, ...]]:
    """Return what each model gives at each accuracy level, by the name of its file."""
    models = evaluated_models(judged)
    quantized = {item.pair.quantized_name: item.pair.quantized_model for item in judged}
    others = other_levels(quantized, models.engines, _level(judged))
    return accuracy_levels(quantized, others, evaluations, _level(judged))


def make_reports(
    resolved: Resolved,
    calibration: Calibration,
    judged: Sequence[JudgedModel],
    measured: MeasuredSet,
    evaluations: Sequence[Evaluation],
    changed: Sequence[ChangeCollector],
    run: RunDirectory,
    runs: Sequence[RunDirectory],
    progress: ProgressCallback,
) -> tuple[Evaluated, ...]:
    """Measure the latency, decide the gates, and return the files of each report.

    ``evaluations`` and ``changed`` are of each of ``evaluated_models``, ``runs`` where the report of each
    quantized model goes.
    """
    recipe, float_model = resolved.recipe, judged[0].pair.float_model
    files = [QuantizedFile(item.pair.quantized_model, item.exported.target, item.layers) for item in judged]
    times = served_latency(resolved, float_model, files, run, progress)
    versions, work = evaluated_models(judged).versions, _work(float_model)
    levels, own_count = _levels(judged, evaluations), len(judged)
    found = []
    for item, own, evaluation, timed, collector in zip(
        judged, runs, evaluations[:own_count], times, changed[:own_count], strict=True
    ):
        pair, name = item.pair, item.pair.quantized_name
        own_recipe = with_ranges_of(item.exported.recipe, item.origin, calibration, name)
        models = model_summary(recipe.model.path, run, pair, calibration)
        plugins = plugin_versions(own_recipe, [judged.spec for judged in measured.metrics])
        plain = _report(models, item, calibration, measured, evaluation, timed, versions | plugins)
        sizes = (models.float_bytes, models.quantized_model.bytes)
        saturation = _saturation(item)
        here = saturation if saturates_here(saturation, item.exported.target) else NOTHING
        warnings = result_warnings(sizes, plain.layers, work, plain.metrics, here, item.origin)
        warnings += arithmetic_warnings(pair.quantized_model.content)
        warnings += left_out_warnings(evaluation.left_out)
        ladder = tuned_ladder(run, pair.quantized_model)
        accuracy = levels.get(name, ())
        plain = replace(
            plain, warnings=warnings, ladder=ladder, accuracy_levels=accuracy, saturation=saturation
        )
        report = decide(plain, recipe.gate, measured.baseline)
        material = partial(_material, item, calibration, tensor_recipe(own_recipe))
        changes = collector.changes(measured.class_names)
        contents = report_files(report, own_recipe, material, item.origin, changes, own)
        found.append(Evaluated(EvaluationResult(report, own), contents))
    return tuple(found)


def _saturation(judged: JudgedModel) -> Saturation:
    graph = judged.pair.quantized_model.load()
    found = saturation_of(graph, judged.exported.target)
    release(graph)
    return found


def _work(float_model: StoredModel) -> Mapping[str, int | None]:
    graph = float_model.load()
    counts = multiply_accumulates(graph).counts
    release(graph)
    return counts


def _report(
    models: ModelSummary,
    judged: JudgedModel,
    calibration: Calibration,
    measured: MeasuredSet,
    evaluation: Evaluation,
    times: Times,
    versions: dict[str, str],
) -> Report:
    stored = calibration.provenance
    return Report(
        times=times,
        versions=versions,
        model=models,
        target=judged.plan.target,
        amax=amax_summary(judged.origin),
        calibration=CalibrationSummary(stored.method, stored.samples, stored.data),
        evaluation=EvaluationSummary(
            relative_location(measured.source, Path.cwd()),
            evaluation.samples,
            measured.data_digest,
            "step" if measured.is_step else "sample",
        ),
        metrics=evaluation.measurements,
        stream=evaluation.stream,
        generation=evaluation.generation,
        layers=judged.layers,
        gates=(),
    )


def _material(judged: JudgedModel, calibration: Calibration, recipe: TensorRecipe) -> Material:
    return Material(
        float_model=judged.pair.float_model.load(),
        quantized_model=judged.pair.quantized_model.load(),
        calibration=calibration,
        plan=judged.plan,
        target=judged.exported.target,
        recipe=recipe,
    )
