"""What is analyzed: both models in stages, the layers that are wanted, and the samples in pieces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.amax.overrides import matches, nearest_match
from ptq_cli.analysis.judge import Yardstick
from ptq_cli.analysis.measure_layers import LayerSubject
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import require_labels
from ptq_cli.calibration.provenance import load_run
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import MetricError, UnknownNameError, UsageError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.document.analysis_document import RankedBy
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.evaluation.metrics.metric_registry import PAIR_METRICS, SQNR
from ptq_cli.evaluation.metrics.spec import MetricSpec, metric_specs, split_output
from ptq_cli.evaluation.runs.judged import judged_metrics
from ptq_cli.models.files.stored import read_model, serialize
from ptq_cli.models.fixed_inputs import reopened
from ptq_cli.models.graph_reading import input_at, names_around
from ptq_cli.models.loading.onnx_source import input_specs, load_onnx
from ptq_cli.pipeline.evaluation.evaluation_set import (
    class_counts,
    has_classes,
    noted_output_axes,
    varying_outputs,
)
from ptq_cli.pipeline.exported_file import (
    Pair,
    as_exported,
    quantized_metadata,
    quantized_path,
    require_origin,
    with_ranges_of,
)
from ptq_cli.qdq.read.constant_values import with_float_activations, with_float_weights
from ptq_cli.qdq.read.padded_channels import without_padding
from ptq_cli.qdq.read.quantized_file import spelled_out, with_types
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import StagedModel, cut_stages
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import EvaluationSettings
from ptq_cli.runtime.session import NO_ARENA, Kernels, Session
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.remembered_data import last_evaluation, with_remembered_evaluation
from ptq_cli.setup.resolve import Request, Resolved, open_data
from ptq_cli.setup.run_directory import RunDirectory
from ptq_cli.setup.served_inputs import with_states

# The axis of the channels of what an operator reads and makes.
_CHANNELS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
KEEP_CHANNELS = (
    "Add",
    "AveragePool",
    "Clip",
    "Gelu",
    "GlobalAveragePool",
    "MaxPool",
    "Mul",
    "Relu",
    "Sigmoid",
)


@dataclass(frozen=True)
class Question:
    """What of an analysis is wanted.

    Attributes:
        layers: patterns of the layers whose sensitivity is wanted; empty for all.
        sensitivity: whether any is wanted; without, tensors alone are measured.
        skipped: patterns of the layers whose sensitivity is not wanted.
    """

    layers: Sequence[str] = ()
    sensitivity: bool = True
    order: RankedBy = "sqnr"
    skipped: Sequence[str] = ()


def make_subject(
    twins: TwinGraphs, layers: Sequence[LayerEntry], question: Question, yardstick: Yardstick
) -> LayerSubject:
    """Cut both models into stages, and open a session for each."""
    stages = cut_stages(twins, {layer.name for layer in layers if layer.integer})
    outputs = twins.float_model.graph.outputs
    constants = {
        value.name or "": value.const_value.numpy() for value in outputs if value.const_value is not None
    }
    if yardstick.output_name in constants:
        raise MetricError(
            f"the output '{yardstick.output_name}' is a constant, so it does not distinguish layers",
            hint="choose another output: --metric sqnr_db[OUTPUT]",
        )
    staged = StagedModel(stages, twins.pairs, yardstick.output_name)
    return LayerSubject(
        staged=staged,
        pairs=twins.pairs,
        channel_axes=channel_axes(twins.float_model.graph),
        outputs=[value.name or "" for value in outputs],
        layers=_chosen(staged, question, names_around(twins.float_model.graph)),
        yardstick=yardstick,
        constants=constants,
        output_axes=noted_output_axes(twins.float_model) or (),
        halves=_halves(twins),
    )


WEIGHTS_ALONE, ACTIVATIONS_ALONE = "weights", "activations"


def _halves(twins: TwinGraphs) -> dict[str, Session]:
    """Open the models of which only the weights, or only the activations, are integers."""
    made = {WEIGHTS_ALONE: with_float_activations(twins), ACTIVATIONS_ALONE: with_float_weights(twins)}
    return {
        name: Session(serialize(model), threads=1, place=NO_ARENA, kernels=Kernels(integers=False))
        for name, model in made.items()
        if model is not None
    }


def yardstick_of(recipe: Recipe, dataset: Dataset, model: ir.Model) -> Yardstick:
    """What variants are judged by: the first metric named or defined, or top-1 if labels allow."""
    outputs = [value.name or "" for value in model.graph.outputs]
    named = recipe.evaluation.metrics[0] if recipe.evaluation.metrics else ""
    metric, output = split_output(named)
    # One whose size depends on the data can differ between the models, and then nothing can be told.
    varying = varying_outputs(model)
    fixed = next((name for name in outputs if name not in varying), outputs[0])
    if metric in PAIR_METRICS:
        return _comparison(metric, output or fixed, outputs)
    specs = metric_specs([named] if named else [], recipe.metric)
    if not specs and has_classes(dataset, recipe.data.batch_size):
        specs = (MetricSpec(name="top1", metric="top1"),)
    if not specs:
        return _comparison(SQNR, fixed, outputs)
    spec = next((item for item in specs if named in (item.name, item.metric)), specs[0])
    if spec.needs_labels:
        require_labels(dataset, f"metric '{spec.name}'")
    judged = judged_metrics([spec], outputs, class_counts(model))[0]
    return Yardstick(name=spec.name, output=judged.output, output_name=judged.output_name, judged=judged)


def _comparison(metric: str, output: str, outputs: Sequence[str]) -> Yardstick:
    if output not in outputs:
        raise MetricError(
            f"{metric}: the model has no output '{output}'{did_you_mean(output, list(outputs))}",
            hint=f"its outputs: {', '.join(outputs)}",
        )
    index = outputs.index(output)
    # As evaluate calls it: plain for the first output.
    name = metric if index == 0 else f"{metric}[{output}]"
    return Yardstick(
        name=name,
        output=index,
        output_name=outputs[index],
        judged=None,
        pair=None if metric == SQNR else PAIR_METRICS[metric],
    )


def _chosen(staged: StagedModel, question: Question, around: Mapping[str, Sequence[str]]) -> list[str]:
    if not question.sensitivity:
        return []
    known = list(staged.layers)
    for pattern in (*question.layers, *question.skipped):
        inside = next((name for name in around if matches(pattern, [name])), None)
        if inside is not None and not any(matches(pattern, [name]) for name in known):
            whole = around[inside][0]
            raise UnknownNameError(
                f"layer '{inside}' is inside '{whole}', which is measured as one layer",
                hint=f"--layers {whole}",
            )
        if not any(matches(pattern, [name]) for name in known):
            raise UnknownNameError(
                f"there is no quantized layer '{pattern}'{nearest_match(pattern, known)}",
                hint="ptq inspect lists the layers; *, ? and […] match as in a shell",
            )
    found = [name for name in known if _is_wanted(name, question)]
    if known and not found:
        raise UsageError(
            "--layers and --skip-layers leave no layer to measure",
            hint="--no-sensitivity measures tensors only",
        )
    return found


def _is_wanted(name: str, question: Question) -> bool:
    asked = not question.layers or any(matches(pattern, [name]) for pattern in question.layers)
    return asked and not any(matches(pattern, [name]) for pattern in question.skipped)


def channel_axes(graph: ir.Graph) -> dict[str, int]:
    """Return the axis of the channels of tensors that have them, told by the operators around them.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["": 20]>
        ...     g (float[n, 3] x, float[3, 4] w) => (float[n, 4] z) { y = MatMul(x, w) z = Relu(y) }'''
        >>> channel_axes(ir.from_onnx_text(text).graph)
        {'x': -1, 'y': -1, 'z': -1}
    """
    axes: dict[str, int] = {}
    for node in graph:
        axis, source = _CHANNELS.get(node.op_type), input_at(node, 0)
        read = source.name or "" if source is not None else ""
        if axis is not None:
            axes.setdefault(read, axis)
        elif node.op_type in KEEP_CHANNELS:
            axis = axes.get(read)
        if axis is not None:
            axes[node.outputs[0].name or ""] = axis
    return axes


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


def open_analysis(
    request: Request, run: RunDirectory, quantized_model: Path | None, progress: ProgressCallback
) -> OpenedAnalysis:
    """Open what an analysis looks at; ``run_analyze`` says what is refused."""
    resolved, calibration, float_model, graph = load_run(request, run)
    recipe = resolved.recipe
    require_outputs(run, input_files(recipe))
    path = quantized_path(run, quantized_model)
    pair = Pair(float_model, read_model(path), path.name)
    origin = quantized_metadata(pair.quantized_model, path)
    require_origin(origin, calibration, path)
    resolved = as_exported(resolved, origin, path)
    resolved = resolved.with_recipe(with_ranges_of(resolved.recipe, origin, calibration, path.name))
    quantized = reopened(spelled_out(without_padding(load_onnx(path)), graph), graph)
    twins = TwinGraphs(graph, with_types(quantized))
    inputs = input_specs(twins.float_model)
    last = last_evaluation(request, run, quantized_model)
    is_elsewhere = quantized_model is None and path == run.model_elsewhere()
    notes = [f"quantized model: {path}, where this run's was written"] if is_elsewhere else []
    if last is None:
        resolved, note = with_remembered_evaluation(resolved, run, quantized_model, or_calibration=True)
        notes += [note] if note else []
    for note in notes:
        progress(Progress("analyze", 0, None, note))
    settings = _with_data_of(last, resolved.recipe.evaluation, request)
    data = open_data(settings, resolved.strict_reading(), "evaluation", "--eval-data")
    dataset = bind_inputs(with_states(data, resolved.recipe.data, graph, float_model), inputs)
    yardstick = yardstick_of(recipe, dataset, twins.float_model)
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
