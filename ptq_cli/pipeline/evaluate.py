"""``evaluate``: both models over the evaluation set, the report, and the verdict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size
from ptq_cli.calibdata.dataset import Dataset
from ptq_cli.calibdata.labels import require_labels
from ptq_cli.calibdata.thumbnails import thumbnail
from ptq_cli.collectors.artifact import Calibration, statistics_digest
from ptq_cli.core.errors import InputFileError, ReportError, StaleCalibrationError, first_line
from ptq_cli.core.files import require_file, write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.onnx_source import input_specs
from ptq_cli.models.stored import StoredModel, read_model, release
from ptq_cli.pipeline.export import (
    AMAX_METHOD,
    AMAX_PERCENTILE,
    FLOAT_SHA256,
    LAYERS,
    OVERRIDES,
    QUANTIZERS,
    STATISTICS_SHA256,
    WEIGHT_AMAX,
    report_layers,
)
from ptq_cli.pipeline.gate import read_baseline
from ptq_cli.pipeline.measure import checked, open_data
from ptq_cli.pipeline.outputs import require_outputs
from ptq_cli.pipeline.page import in_memory
from ptq_cli.pipeline.provenance import load_run
from ptq_cli.pipeline.report_files import report_files, with_exported
from ptq_cli.pipeline.resolve import Request
from ptq_cli.pipeline.run_directory import RunDirectory
from ptq_cli.pipeline.versions import library_versions
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target import load_target
from ptq_cli.recipe.locations import relative_location
from ptq_cli.recipe.schema import Recipe
from ptq_cli.report.changes import ChangeCollector
from ptq_cli.report.codec import decode
from ptq_cli.report.decide import decide
from ptq_cli.report.document import (
    AmaxSummary,
    CalibrationSummary,
    EvaluationSummary,
    Layer,
    ModelFile,
    ModelSummary,
    Report,
)
from ptq_cli.report.evaluate import Evaluation, Watch, evaluate_models
from ptq_cli.report.metrics.registry import LABEL_METRICS
from ptq_cli.report.regression import require_same_model
from ptq_cli.report.times import Times, current_time
from ptq_cli.runtime.session import Session


@dataclass(frozen=True)
class EvaluationResult:
    """What ``evaluate`` found.

    Attributes:
        report: all of it, with the verdict.
        run: where ``report.json``, ``report.md``, ``report.html`` and ``junit.xml`` are.
    """

    report: Report
    run: RunDirectory


@dataclass(frozen=True)
class EvaluationSet:
    """The evaluation set, found to fit the model's inputs, the metrics asked for, and the baseline."""

    dataset: Dataset
    metrics: tuple[str, ...]
    baseline: Report | None


@dataclass(frozen=True)
class Pair:
    """The two models, serialized; the quantized one with the name of its file."""

    float_model: StoredModel
    quantized_model: StoredModel
    quantized_name: str


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
    thumbnails: bool = False,
) -> EvaluationResult:
    """Evaluate the float and the quantized model in one pass, and write the report.

    Args:
        request: evaluation data, metrics and limits.
        run: the run directory.
        quantized_model: the model to judge, or None for the one in the run directory.
        progress: is told after each batch.
        thumbnails: show the samples that change their class on the page, where they are pictures.

    Raises:
        MissingStageError: nothing was calibrated or exported.
        StaleCalibrationError: the models or settings do not belong together.
        LabelError: a metric needs labels and the data have none, or one is out of range.
        MetricError: a metric does not fit the model's output.
        GateError: a limit names a metric that was not computed.
    """
    recipe, calibration = load_run(request, run)
    require_outputs(run, recipe)
    path = quantized_path(run, quantized_model)
    pair = Pair(read_model(run.float_model), read_model(path), path.name)
    dataset = open_data(recipe.evaluation, recipe.image, "evaluation", "--eval-data")
    require_origin(quantized_metadata(pair.quantized_model, path), calibration, path)
    inputs = input_specs(pair.float_model.load())
    fitted = fit_evaluation(dataset, recipe, inputs)
    evaluated = make_evaluation(
        with_exported(recipe, run), calibration, pair, fitted, run, progress, thumbnails=thumbnails
    )
    write_together(evaluated.files)
    return evaluated.result


def fit_evaluation(dataset: Dataset, recipe: Recipe, inputs: Sequence[TensorSpec]) -> EvaluationSet:
    """Check that the evaluation set fits the model's inputs, and has labels if a metric needs them.

    Raises:
        DataNameError, DataShapeError, DataTypeError: an array does not fit an input.
        LabelError: a metric needs labels, and there are none.
        ReportError: the baseline is damaged, or no report.
    """
    metrics = _metrics(recipe, dataset)
    if metrics:
        require_labels(dataset, f"metric '{metrics[0]}'")
    return EvaluationSet(bind_inputs(dataset, inputs), tuple(metrics), read_baseline(recipe.gate))


def make_evaluation(
    recipe: Recipe,
    calibration: Calibration,
    pair: Pair,
    evaluation_set: EvaluationSet,
    run: RunDirectory,
    progress: ProgressCallback,
    *,
    thumbnails: bool = False,
) -> Evaluated:
    """Evaluate both models; nothing is written.

    Raises:
        PtqError: as ``run_evaluate`` does.
    """
    origin = quantized_metadata(pair.quantized_model, Path(pair.quantized_name))
    layers = evaluated_layers(pair, recipe, origin)
    model, baseline = model_summary(recipe, run, pair), evaluation_set.baseline
    if baseline is not None:  # decide would say the same, but only after all the work
        require_same_model(model, baseline.model)
    changed = ChangeCollector(partial(thumbnail, settings=recipe.image) if thumbnails else None)
    evaluation = _run_both(recipe, pair, evaluation_set, progress, changed.update)
    dataset = evaluation_set.dataset
    report = Report(
        times=Times(current_time()),
        versions=library_versions(),
        model=model,
        target=load_target(recipe.quantization.target).name,
        amax=_amax_summary(origin),
        calibration=CalibrationSummary(
            calibration.provenance.method, calibration.provenance.samples, calibration.provenance.data
        ),
        evaluation=EvaluationSummary(
            relative_location(dataset.source, Path.cwd()), evaluation.samples, dataset.digest()
        ),
        metrics=evaluation.measurements,
        layers=layers,
        gates=(),
    )
    report = decide(report, recipe.gate, baseline)
    material = partial(in_memory, pair.float_model, pair.quantized_model, calibration, recipe)
    files = report_files(report, recipe, material, origin, changed.changes(dataset.class_names), run)
    return Evaluated(EvaluationResult(report, run), files)


def _run_both(
    recipe: Recipe, pair: Pair, evaluation_set: EvaluationSet, progress: ProgressCallback, watch: Watch
) -> Evaluation:
    threads = recipe.runtime.threads
    float_session = Session(pair.float_model, threads=threads)
    quantized_session = Session(pair.quantized_model, threads=threads)
    dataset = evaluation_set.dataset
    batch_size = fixed_batch_size(float_session.inputs) or recipe.evaluation.batch_size
    return evaluate_models(
        float_session.run,
        quantized_session.run,
        checked(dataset.batches(batch_size)),
        output_names=float_session.outputs,
        metrics=evaluation_set.metrics,
        total=dataset.count,
        progress=progress,
        watch=watch,
    )


def _metrics(recipe: Recipe, dataset: Dataset) -> list[str]:
    """Return the label metrics: those named, those that a limit names, or top-1 where there are labels."""
    limited = [*recipe.gate.max_drop, *recipe.gate.min, *recipe.gate.max_regression]
    named = [*recipe.evaluation.metrics, *(name for name in limited if name in LABEL_METRICS)]
    if not named and dataset.has_labels:
        return ["top1"]
    return [name for name in dict.fromkeys(named) if name in LABEL_METRICS]


def quantized_path(run: RunDirectory, named: Path | None) -> Path:
    """Return the quantized model's file: the one that was named, or the run's own.

    Raises:
        InputFileError: the one that was named is missing.
        MissingStageError: nothing was exported.
    """
    if named is not None:
        return require_file(named, "quantized model")
    return run.require_stage(run.quantized_model, "ptq export")


def quantized_metadata(model: StoredModel, path: Path) -> Mapping[str, str]:
    """Return what a quantized model says of where it came from.

    Raises:
        InputFileError: it is no ONNX file.
    """
    try:
        proto = onnx.load_model_from_string(model.content)
    except DecodeError as error:
        raise InputFileError(
            f"quantized model '{path}' is no ONNX file, or damaged", hint="run ptq export again"
        ) from error
    return {item.key: item.value for item in proto.metadata_props}


def require_origin(origin: Mapping[str, str], calibration: Calibration, path: Path) -> None:
    """Check that a quantized model was made from a calibration.

    Raises:
        InputFileError: it was not written by ``export``.
        StaleCalibrationError: it was made from another model or calibration.
    """
    if FLOAT_SHA256 not in origin:
        raise InputFileError(
            f"'{path}' was not written by ptq export", hint="name a model that was, or none at all"
        )
    if origin[FLOAT_SHA256] != calibration.provenance.model:
        raise StaleCalibrationError(
            f"'{path}' was not made from this run's float model", hint="run ptq export again"
        )
    # The report names the calibration; it must not name another one than the scales come from.
    if origin.get(STATISTICS_SHA256) != statistics_digest(calibration.statistics):
        raise StaleCalibrationError(
            f"'{path}' was made from an earlier calibration than the one at hand",
            hint="run ptq export again, or name the model that was made from it: ptq evaluate FILE",
        )


def model_summary(recipe: Recipe, run: RunDirectory, pair: Pair) -> ModelSummary:
    """Return the two models by file, hash and size."""
    source = relative_location(recipe.model.path, Path.cwd()) if recipe.model.path else run.float_model.name
    return ModelSummary(
        source,
        _model_file(run.float_model.name, pair.float_model),
        _model_file(pair.quantized_name, pair.quantized_model),
    )


def _model_file(name: str, model: StoredModel) -> ModelFile:
    return ModelFile(name, model.sha256, model.size)


def _amax_summary(origin: Mapping[str, str]) -> AmaxSummary:
    percentile = origin.get(AMAX_PERCENTILE)
    settings = {} if percentile is None else {"percentile": float(percentile)}
    if OVERRIDES in origin:
        settings["overrides"] = len(json.loads(origin[OVERRIDES]))
    method, weights = origin.get(AMAX_METHOD, "unknown"), origin.get(WEIGHT_AMAX, "max")
    text = method if weights == "max" else f"{method}, weights by {weights}"
    if QUANTIZERS in origin:
        text += f"; {origin[QUANTIZERS]}"
    return AmaxSummary(text, settings)


def evaluated_layers(pair: Pair, recipe: Recipe, origin: Mapping[str, str]) -> tuple[Layer, ...]:
    """Return where each layer of the quantized model runs.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
    model = pair.float_model.load()
    layers = report_layers(make_plan(model, load_target(recipe.quantization.target)))
    release(model)
    if LAYERS not in origin:
        return layers
    # Which quantizers it was exported with, the recipe at hand need not say.
    unusual = {layer.name: layer for layer in _exported_layers(origin[LAYERS], pair.quantized_name)}
    return tuple(unusual.get(layer.name, layer) for layer in layers)


def _exported_layers(text: str, name: str) -> tuple[Layer, ...]:
    try:
        return decode(tuple[Layer, ...], json.loads(text), LAYERS)  # type: ignore[no-any-return]
    except (ValueError, RecursionError, ReportError) as error:
        raise InputFileError(
            f"'{name}' has damaged metadata '{LAYERS}': {first_line(error)}", hint="run ptq export again"
        ) from error
