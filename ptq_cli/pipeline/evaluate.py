"""``evaluate``: both models over the evaluation set, the report, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size
from ptq_cli.calibdata.dataset import Dataset
from ptq_cli.calibdata.labels import require_labels
from ptq_cli.collectors.artifact import Calibration
from ptq_cli.core.errors import InputFileError, StaleCalibrationError, first_line
from ptq_cli.core.files import require_file, sha256_file, write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.pipeline.calibrate import checked, open_data
from ptq_cli.pipeline.export import AMAX_METHOD, AMAX_PERCENTILE, FLOAT_SHA256
from ptq_cli.pipeline.provenance import load_run
from ptq_cli.pipeline.resolve import Request
from ptq_cli.pipeline.run_directory import RunDirectory
from ptq_cli.pipeline.versions import library_versions
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target import load_target
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.document import (
    AmaxSummary,
    CalibrationSummary,
    EvaluationSummary,
    Layer,
    ModelFile,
    ModelSummary,
    Report,
    current_time,
    report_to_json,
)
from ptq_cli.report.evaluate import Evaluation, evaluate_models
from ptq_cli.report.gate import decide
from ptq_cli.report.markdown import report_to_markdown
from ptq_cli.report.metrics.registry import LABEL_METRICS
from ptq_cli.runtime.session import Session


@dataclass(frozen=True)
class EvaluationResult:
    """What ``evaluate`` found.

    Attributes:
        report: all of it, with the verdict.
        run: where ``report.json`` and ``report.md`` are.
    """

    report: Report
    run: RunDirectory


def run_evaluate(
    request: Request,
    run: RunDirectory,
    quantized_model: Path | None = None,
    progress: ProgressCallback = silent,
) -> EvaluationResult:
    """Evaluate the float and the quantized model in one pass, and write the report.

    Args:
        request: evaluation data, metrics and limits.
        run: the run directory.
        quantized_model: the model to judge, or None for the one in the run directory.
        progress: is told after each batch.

    Raises:
        MissingStageError: nothing was calibrated or exported.
        StaleCalibrationError: the models or settings do not belong together.
        LabelError: a metric needs labels and the data have none, or one is out of range.
        MetricError: a metric does not fit the model's output.
        GateError: a limit names a metric that was not computed.
    """
    recipe, calibration = load_run(request, run)
    path = _quantized_path(run, quantized_model)
    origin = _origin_of(path, calibration)
    dataset = open_data(recipe.evaluation, recipe.image, "evaluation", "--eval-data")
    evaluation = _evaluate(recipe, run, path, dataset, progress)
    report = Report(
        created=current_time(),
        versions=library_versions(),
        model=_model_summary(recipe, run, path),
        target=recipe.quantization.target,
        amax=_amax_summary(origin),
        calibration=CalibrationSummary(
            calibration.provenance.method, calibration.provenance.samples, calibration.provenance.data
        ),
        evaluation=EvaluationSummary(
            relative_location(dataset.source, Path.cwd()), evaluation.samples, dataset.digest()
        ),
        metrics=evaluation.measurements,
        layers=_layers(run, recipe),
        gates=tuple(decide(evaluation.measurements, recipe.gate)),
    )
    write_together(
        {
            run.report_json: report_to_json(report).encode(),
            run.report_markdown: report_to_markdown(report).encode(),
        }
    )
    return EvaluationResult(report, run)


def _evaluate(
    recipe: Recipe, run: RunDirectory, path: Path, dataset: Dataset, progress: ProgressCallback
) -> Evaluation:
    threads = recipe.runtime.threads
    float_session = Session(run.float_model, threads=threads)
    quantized_session = Session(path, threads=threads)
    bound = bind_inputs(dataset, float_session.inputs)
    metrics = _metrics(recipe, dataset)
    if metrics:
        require_labels(dataset, f"metric '{metrics[0]}' compares with labels")
    batch_size = fixed_batch_size(float_session.inputs) or recipe.evaluation.batch_size
    return evaluate_models(
        float_session.run,
        quantized_session.run,
        checked(bound.batches(batch_size)),
        output_names=float_session.outputs,
        metrics=metrics,
        total=dataset.count,
        progress=progress,
    )


def _metrics(recipe: Recipe, dataset: Dataset) -> list[str]:
    """Return the label metrics: those named, those that a limit names, or top-1 where there are labels."""
    limited = [*recipe.gate.max_drop, *recipe.gate.min]
    named = [*recipe.evaluation.metrics, *(name for name in limited if name in LABEL_METRICS)]
    if not named and dataset.has_labels:
        return ["top1"]
    return [name for name in dict.fromkeys(named) if name in LABEL_METRICS]


def _quantized_path(run: RunDirectory, named: Path | None) -> Path:
    if named is not None:
        return require_file(named, "quantized model")
    return run.require_stage(run.quantized_model, "ptq export")


def _origin_of(path: Path, calibration: Calibration) -> Mapping[str, str]:
    try:
        origin = ir.load(path).metadata_props
    except Exception as error:
        raise InputFileError(
            f"quantized model '{path}' is no ONNX file: {first_line(error)}", hint="run ptq export again"
        ) from error
    if origin.get(FLOAT_SHA256) != calibration.provenance.model:
        raise StaleCalibrationError(
            f"'{path}' was not made from this run's float model", hint="run ptq export again"
        )
    return origin


def _model_summary(recipe: Recipe, run: RunDirectory, path: Path) -> ModelSummary:
    source = relative_location(recipe.model.path, Path.cwd()) if recipe.model.path else run.float_model.name
    return ModelSummary(source, _model_file(run.float_model), _model_file(path))


def _model_file(path: Path) -> ModelFile:
    return ModelFile(path.name, sha256_file(path), path.stat().st_size)


def _amax_summary(origin: Mapping[str, str]) -> AmaxSummary:
    percentile = origin.get(AMAX_PERCENTILE)
    settings = {} if percentile is None else {"percentile": float(percentile)}
    return AmaxSummary(origin.get(AMAX_METHOD, "unknown"), settings)


def _layers(run: RunDirectory, recipe: Recipe) -> tuple[Layer, ...]:
    plan = make_plan(ir.load(run.float_model), load_target(recipe.quantization.target))
    return tuple(
        Layer(layer.name, layer.op, layer.quantized, "" if layer.quantized else layer.reason)
        for layer in plan.layers
    )
