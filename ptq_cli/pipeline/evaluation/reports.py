"""The reports of an evaluation: what was measured, with the latency, the gates and the page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.documents import parse_document, to_json
from ptq_cli.core.errors import PtqError, ReportError
from ptq_cli.evaluation.decide_gates import decide
from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.document.ladder import Ladder
from ptq_cli.evaluation.document.report_document import (
    NO_SATURATION,
    CalibrationSummary,
    Changes,
    Details,
    EvaluationSummary,
    ModelSummary,
    Report,
    Saturation,
)
from ptq_cli.evaluation.runs.evaluator import Evaluation
from ptq_cli.evaluation.verification import saturates_here, saturation_of
from ptq_cli.latency.served_latency import QuantizedFile, served_latency
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.files.storing import release
from ptq_cli.pipeline.evaluation.opened_pass import report_runs
from ptq_cli.pipeline.evaluation.quantized_models import EvaluationSubject, QuantizedModel
from ptq_cli.pipeline.evaluation.report_page import Material, earlier, make_page, report_markdown
from ptq_cli.pipeline.exported_file import amax_summary, model_summary, quantizer_line, with_ranges_of
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.tensor_settings import TensorRecipe, tensor_recipe
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.recipe_layers import recipe_to_toml
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.text.gates import report_to_junit
from ptq_cli.report.text.result_warnings import arithmetic_warnings, left_out_warnings, result_warnings
from ptq_cli.setup.parts import Work
from ptq_cli.setup.run_directory import RunDirectory, plugin_versions

_PLAIN = "the target's own quantizers"


def report_files(
    report: Report,
    recipe: Recipe,
    material: Callable[[], Material],
    origin: Mapping[str, str],
    changes: Changes | None,
    run: RunDirectory,
) -> dict[Path, bytes]:
    """The content of each file that tells of an evaluation."""
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
    was, now = origin.get(MetadataKey.QUANTIZERS, _PLAIN), _quantizers(material)
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
        return _PLAIN
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


def make_reports(
    work: Work, subject: EvaluationSubject, evaluations: Sequence[Evaluation]
) -> tuple[Evaluated, ...]:
    """Measure the latency, decide the gates, and return the files of each quantized model's report.

    ``evaluations`` are of each model that was run.
    """
    recipe, calibration = work.resolved.recipe, subject.calibration
    quantized, summary = subject.quantized, subject.summary
    float_model = quantized[0].pair.float_model
    files = [
        QuantizedFile(item.pair.quantized_model, item.exported.target, item.layers) for item in quantized
    ]
    times = served_latency(work.resolved, float_model, files, work.run, work.progress)
    versions, products = subject.models.versions, _products(float_model)
    levels = subject.models.accuracy_levels(evaluations)
    runs = report_runs(work.run, [item.pair for item in quantized])
    found = []
    for index, (item, own, timed) in enumerate(zip(quantized, runs, times, strict=True)):
        own_recipe = with_ranges_of(item.exported.recipe, item.origin, calibration, item.name)
        models = model_summary(recipe.model.path, work.run, item.pair, calibration)
        plugins = plugin_versions(own_recipe, [judged.spec for judged in summary.metrics])
        plain = _report(models, item, subject, evaluations[index], timed, versions | plugins)
        sizes = (models.float_bytes, models.quantized_model.bytes)
        saturation = _saturation(item)
        here = saturation if saturates_here(saturation, item.exported.target) else NO_SATURATION
        warnings = result_warnings(sizes, plain.layers, products, plain.metrics, here, item.origin)
        warnings += arithmetic_warnings(item.pair.quantized_model.content)
        warnings += left_out_warnings(evaluations[index].left_out)
        plain = replace(
            plain,
            warnings=warnings,
            ladder=tuned_ladder(work.run, item.pair.quantized_model),
            accuracy_levels=levels.get(item.name, ()),
            saturation=saturation,
        )
        report = decide(plain, recipe.gate, summary.baseline)
        material = partial(_material, item, calibration, tensor_recipe(own_recipe))
        changes = subject.watches[index].changes(summary.class_names)
        contents = report_files(report, own_recipe, material, item.origin, changes, own)
        if item.pair.statement is not None:
            place, statement = item.pair.statement
            contents[place] = statement.judged(report).content()
        found.append(Evaluated(EvaluationResult(report, own), contents))
    return tuple(found)


def _saturation(model: QuantizedModel) -> Saturation:
    graph = model.pair.quantized_model.load()
    found = saturation_of(graph, model.exported.target)
    release(graph)
    return found


def _products(float_model: StoredModel) -> Mapping[str, int | None]:
    graph = float_model.load()
    counts = multiply_accumulates(graph).counts
    release(graph)
    return counts


def _report(
    models: ModelSummary,
    model: QuantizedModel,
    subject: EvaluationSubject,
    evaluation: Evaluation,
    times: Times,
    versions: dict[str, str],
) -> Report:
    stored, measured = subject.calibration.provenance, subject.summary
    return Report(
        times=times,
        versions=versions,
        model=models,
        target=model.plan.target,
        amax=amax_summary(model.origin),
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
        layers=model.layers,
        gates=(),
    )


def _material(model: QuantizedModel, calibration: Calibration, recipe: TensorRecipe) -> Material:
    return Material(
        float_model=model.pair.float_model.load(),
        quantized_model=model.pair.quantized_model.load(),
        calibration=calibration,
        plan=model.plan,
        target=model.exported.target,
        recipe=recipe,
    )


def tuned_ladder(run: RunDirectory, model: StoredModel) -> Ladder | None:
    """The ladder of the tuning that chose this very model.

    None without a ``tune.json``, or if it is of another model, damaged, or of another version: the model is
    evaluated all the same.
    """
    try:
        found = parse_document(Ladder, run.tuning.read_bytes())
    except (OSError, ReportError):
        return None
    return found if found.model_sha256 == model.sha256 else None
