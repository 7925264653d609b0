"""A calibrated float graph becomes the quantized one, before anything is recovered, proven or written."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.work.progress import ProgressCallback
from ptq_cli.models.converting.opset import opset_of, raise_opset
from ptq_cli.models.files.constants_file import ConstantsFile
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.exporting.placing.half_scales import with_half_scale
from ptq_cli.pipeline.exporting.placing.latency_preference import LatencyPreference, prefer_latency
from ptq_cli.pipeline.exporting.placing.placement import Placement, place
from ptq_cli.pipeline.exporting.ranges.form_noise import without_noisy_forms
from ptq_cli.pipeline.exporting.ranges.moved_statistics import with_moved_statistics
from ptq_cli.pipeline.exporting.ranges.tensor_ranges import decide_activations, require_ranges, unsearched
from ptq_cli.pipeline.exporting.recovering.ranges_by_effect import RangesByEffect, choose_ranges
from ptq_cli.pipeline.exporting.recovering.recovery_data import RecoveryData
from ptq_cli.pipeline.exporting.settings.tensor_settings import tensor_recipe
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.plan.formats.clamps import expose_clamps, fit_clamps
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import Parameters, decide_all
from ptq_cli.qdq.write.weights.streamed_weights import Keep, StreamedWeights, as_it_is
from ptq_cli.recipe.recovery_rungs import RANGES, recovery_rungs
from ptq_cli.recipe.sections.quantization_sections import FLOAT16, LATENCY
from ptq_cli.runtime.machine import Machine


@dataclass(frozen=True, kw_only=True)
class QuantizedGraph:
    """A quantized graph, and what it was made by.

    Attributes:
        model: the graph, in an opset that has the integers.
        placement: where which quantizer goes.
        plan: of the placement, with clamps exposed.
        parameters: of every site.
        unsearched: tensors whose method had only one candidate, with the method.
        latency: what was moved to float for speed; None if that was not asked for.
        ranges: which ranges of activations were chosen by their effect; None if that was not asked for.
        work: multiply-accumulates of each layer.
        begun: the file that holds integers of a large model already; None of another.
    """

    model: ir.Model
    placement: Placement
    plan: Plan
    parameters: Parameters
    unsearched: Mapping[str, str]
    latency: LatencyPreference | None
    ranges: RangesByEffect | None
    work: Mapping[str, int | None]
    begun: ConstantsFile | None


def quantized_graph(
    resolved: Resolved,
    calibration: Calibration,
    float_model: StoredModel,
    graph: ir.Model,
    run: RunDirectory,
    output: Path,
    plan: Plan | None,
    data: RecoveryData | None,
    progress: ProgressCallback,
) -> QuantizedGraph:
    """Quantize a graph in place, with the parameters that a calibration decides.

    Args:
        resolved: the recipe and the target.
        calibration: the statistics.
        float_model: that was calibrated.
        graph: its graph, which becomes the quantized one.
        run: the run directory, for messages.
        output: the file that the graph will be written to; large constants go where its data will be.
        plan: of the model for the target, where one was made already; otherwise it is made here.
        data: to choose ranges of activations by, if the recipe asks for that; None does without.
        progress: is told about a measurement of operators.

    Raises:
        PtqError: as ``run_export`` does.
    """
    recipe, target, asked = resolved.recipe, resolved.target, tensor_recipe(resolved.recipe)
    calibration = with_moved_statistics(calibration, graph.graph)
    begun = ConstantsFile(output.parent, output.name) if float_model.data else None
    keep = StreamedWeights(begun) if begun is not None else as_it_is
    plan = plan if plan is not None else make_plan(graph, target)
    placement = place(graph, plan, target, asked, calibration)
    latency = None
    if recipe.export.prefer == LATENCY:
        latency = prefer_latency(graph, placement.plan, resolved, progress)
        placement = place(graph, plan, target, asked, calibration, faster=latency.in_float)
    ranges, name = None, run.float_model.name
    if data is not None and RANGES in recovery_rungs(recipe.recovery):
        placement, ranges = _by_effect(
            placement, calibration, float_model, data, plan.activations, name, resolved.machine, progress
        )
    decided = _decide(graph, placement, calibration, name, keep)
    work = multiply_accumulates(decided.model).counts
    quantize_in_place(decided.model, decided.plan, decided.parameters)
    return QuantizedGraph(
        model=decided.model,
        placement=decided.placement,
        plan=decided.plan,
        parameters=decided.parameters,
        unsearched=decided.unsearched,
        latency=latency,
        ranges=ranges,
        work=work,
        begun=begun,
    )


def _by_effect(
    placement: Placement,
    calibration: Calibration,
    float_model: StoredModel,
    data: RecoveryData,
    cuts: Collection[str],
    name: str,
    machine: Machine,
    progress: ProgressCallback,
) -> tuple[Placement, RangesByEffect]:
    """Return the placement with the ranges that cost the outputs least, and what was chosen."""

    def build(placed: Placement) -> tuple[ir.Model, Plan]:
        trial = _decide(float_model.load(), placed, calibration, name, as_it_is)
        quantize_in_place(trial.model, trial.plan, trial.parameters)
        return trial.model, trial.plan

    return choose_ranges(build, float_model, placement, calibration, data, cuts, machine, progress)


@dataclass(frozen=True, kw_only=True)
class _Decided:
    """What is decided before the graph is touched.

    Attributes:
        model: the float model, in an opset that has the integers.
        placement: where which quantizer goes.
        plan: of the placement, with clamps exposed.
        parameters: of every site.
        unsearched: tensors whose method had only one candidate, with the method.
    """

    model: ir.Model
    placement: Placement
    plan: Plan
    parameters: Parameters
    unsearched: Mapping[str, str]


def _decide(
    model: ir.Model,
    placement: Placement,
    calibration: Calibration,
    name: str,
    keep: Keep,
) -> _Decided:
    settings = placement.settings
    require_ranges(placement.plan, calibration)
    families = settings.activation_families
    decisions = decide_activations(placement.plan, settings.activations, calibration, families)
    found = {source: decision.parameters for source, decision in decisions.items()}
    if placement.float_type == FLOAT16:
        found = {source: with_half_scale(item) for source, item in found.items()}
    on_own_grid = placement.on_own_grid(found)
    found = fit_clamps(model, placement.plan, found) | on_own_grid
    plan = without_noisy_forms(model, placement.plan, found, calibration)
    plan = expose_clamps(model, plan, on_own_grid)
    model = with_opset(model, placement.opset, name)
    quantizer_of = placement.quantizers.__getitem__
    parameters = decide_all(model, plan, lambda site: found[site.source], quantizer_of, keep)
    weights = {tensor: _weight_method(tensor, placement) for tensor in parameters.unsearched}
    return _Decided(
        model=model,
        placement=placement,
        plan=plan,
        parameters=parameters,
        unsearched=unsearched(decisions) | weights,
    )


def with_opset(model: ir.Model, opset: int, what: str) -> ir.Model:
    """Return the model in an opset that its placement needs; may change it.

    Raises:
        InvalidOnnxError: it cannot be converted to that opset, or only with other operators.
    """
    if opset_of(model) >= opset:
        return model
    names = [node.name for node in model.graph.all_nodes()]
    hint = "use 5 to 8 bits without blocks, or export the model again with that opset"
    needs = "(which the target, 4-bit or 16-bit integers, or blocks need)"
    try:
        raised = raise_opset(model, opset, what)
    except InvalidOnnxError as error:
        raise InvalidOnnxError(f"{error.message} {needs}", hint=hint) from error
    if [node.name for node in raised.graph.all_nodes()] != names:
        raise InvalidOnnxError(
            f"converting '{what}' to opset {opset} {needs} changed its operators", hint=hint
        )
    return raised


def _weight_method(tensor: str, placement: Placement) -> str:
    return next(
        item.weight_method for site, item in placement.settings.weights.items() if site.tensor == tensor
    )
