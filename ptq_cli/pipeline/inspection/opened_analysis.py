"""What an analysis looks at: both models and the data, found to belong together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.files.stored import read_model
from ptq_cli.models.loading.onnx_source import input_specs, load_onnx
from ptq_cli.pipeline.calibration.loaded_run import load_run
from ptq_cli.pipeline.evaluation.last_evaluation import last_evaluation, with_remembered_evaluation
from ptq_cli.pipeline.exporting.exported_file import (
    Pair,
    as_exported,
    quantized_metadata,
    quantized_path,
    require_origin,
)
from ptq_cli.pipeline.inspection.analysis_subject import yardstick_of
from ptq_cli.pipeline.run.output_checks import input_files, require_outputs
from ptq_cli.pipeline.run.reading import open_data
from ptq_cli.pipeline.run.resolve import Request, Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.qdq.read.padded_channels import without_padding
from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.qdq.read.spelled_out import spelled_out
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recipe.sections.evaluation_sections import EvaluationSettings
from ptq_cli.report.analysis.judge import Yardstick

DEFAULT_SAMPLES = 256


@dataclass(frozen=True, kw_only=True)
class OpenedAnalysis:
    """What is looked at, found to belong together."""

    resolved: Resolved
    settings: EvaluationSettings
    is_last_evaluation: bool
    calibration: Calibration
    pair: Pair
    origin: Mapping[str, str]
    twins: TwinGraphs
    inputs: Sequence[TensorSpec]
    dataset: Dataset
    yardstick: Yardstick


def open_analysis(request: Request, run: RunDirectory, quantized_model: Path | None) -> OpenedAnalysis:
    """Open what an analysis looks at; ``run_analyze`` says what is refused."""
    resolved, calibration, float_model, graph = load_run(request, run)
    recipe = resolved.recipe
    require_outputs(run, input_files(recipe))
    path = quantized_path(run, quantized_model)
    pair = Pair(float_model, read_model(path), path.name)
    origin = quantized_metadata(pair.quantized_model, path)
    require_origin(origin, calibration, path)
    resolved = as_exported(resolved, origin, path)
    twins = TwinGraphs(graph, with_types(spelled_out(without_padding(load_onnx(path)), graph)))
    inputs = input_specs(twins.float_model)
    last = last_evaluation(request, run, quantized_model)
    if last is None:
        resolved, _ = with_remembered_evaluation(resolved, request, run, quantized_model)
    settings = _with_data_of(last, resolved.recipe.evaluation, request)
    dataset = bind_inputs(open_data(settings, resolved.strict_reading(), "evaluation", "--eval-data"), inputs)
    yardstick = yardstick_of(settings, recipe.metric, dataset, twins.float_model)
    return OpenedAnalysis(
        resolved=resolved,
        settings=settings,
        is_last_evaluation=last is not None,
        calibration=calibration,
        pair=pair,
        origin=origin,
        twins=twins,
        inputs=inputs,
        dataset=dataset,
        yardstick=yardstick,
    )


def _with_data_of(
    last: EvaluationSettings | None, settings: EvaluationSettings, request: Request
) -> EvaluationSettings:
    """Return the settings with the data of the last evaluation, where those are used, and few samples."""
    if last is not None:
        samples = settings.samples if "eval_samples" in request.settings else last.samples
        settings = replace(settings, data=last.data, samples=samples)
    return settings if settings.samples is not None else replace(settings, samples=DEFAULT_SAMPLES)
