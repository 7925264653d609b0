"""What is decided of a calibrated model, and recovered, before anything is written."""

import gc
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.amax.finish import ScaleRules
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import ProgressCallback
from ptq_cli.latency.latency_preference import prefer_latency
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.files.stored import SMALLEST_MAPPED, StoredModel
from ptq_cli.placement.placed_graph import Placement, place
from ptq_cli.placement.ranges import (
    decide_activations,
    require_ranges,
    unsearched,
    with_moved_statistics,
    with_statistics_of_parts,
    without_noisy_forms,
)
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.dynamic_layers import dynamic_candidates
from ptq_cli.plan.fitted_grids import expose_clamps, fit_clamps, raise_zero_points
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.write.integer_storage import StreamedWeights, WeightStorage, in_memory
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.qdq.write.weight_quantizer import Memory, RememberedQuantizer
from ptq_cli.recipe.known_modes import IN_FLOAT, RANGES, ROW
from ptq_cli.recipe.quantizer_settings import are_plain
from ptq_cli.recipe.recovery_rungs import recovery_rungs
from ptq_cli.recipe.sections import FLOAT16, LATENCY
from ptq_cli.recover.decided_model import DecidedModel, with_opset
from ptq_cli.recover.float_layers import choose_float_layers
from ptq_cli.recover.interrupted_recovery import (
    Interruptions,
)
from ptq_cli.recover.range_choice import choose_ranges
from ptq_cli.recover.recovery_data import RecoveryData
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import RunDirectory


def decided_model(
    resolved: Resolved,
    calibration: Calibration,
    float_model: StoredModel,
    graph: ir.Model,
    run: RunDirectory,
    output: Path,
    plan: Plan | None,
    data: RecoveryData | None,
    interruptions: Interruptions,
    progress: ProgressCallback,
) -> DecidedModel:
    """Decide scales and integers of a model from its calibration.

    The result takes ``graph``. Large constants go where the data of ``output`` will be.
    """
    recipe, target, asked = resolved.recipe, resolved.target, tensor_recipe(resolved.recipe)
    calibration = with_moved_statistics(calibration, graph.graph)
    begun = ConstantsFile(output.parent, output.name) if float_model.is_apart else None
    keep = StreamedWeights(begun) if begun is not None else in_memory
    # Trials of activations decide the same weights again; those of a large model would fill the memory.
    memory: Memory | None = {} if begun is None else None
    plan = plan if plan is not None else make_plan(graph, target)
    placement = place(graph, plan, target, asked, calibration)
    latency = None
    if recipe.export.prefer == LATENCY:
        latency = prefer_latency(graph, placement.plan, resolved, progress)
        placement = place(graph, plan, target, asked, calibration, faster=latency.in_float)
    ranges, float_layers, name = None, None, run.float_model.name
    rungs = recovery_rungs(recipe.recovery) if data is not None else ()

    def build(placed: Placement) -> tuple[ir.Model, Plan]:
        if float_model.size >= SMALLEST_MAPPED:  # Earlier trials are cycles, which nothing looks for here.
            gc.collect()
        trial = _decide(float_model.load(), placed, target, calibration, name, in_memory, memory)
        trial.write(trial.model)
        return trial.model, trial.plan

    if data is not None and RANGES in rungs:
        with interruptions.rung() as stop:
            placement, ranges = choose_ranges(
                build,
                float_model,
                placement,
                calibration,
                data,
                plan.activations,
                resolved.machine,
                progress,
                stop,
            )
    if data is not None and IN_FLOAT in rungs and not interruptions.stopped:
        faster = latency.in_float if latency is not None else {}
        ranged = placement

        def without(in_float: Mapping[str, str], dynamic: Collection[str]) -> Placement:
            in_float, by_row = {**faster, **in_float}, dict.fromkeys(dynamic, ROW)
            found = place(graph, plan, target, asked, calibration, faster=in_float, dynamic=by_row)
            return found.with_ranges_of(ranged)

        with interruptions.rung() as stop:
            placement, float_layers = choose_float_layers(
                build,
                without,
                float_model,
                placement,
                calibration,
                data,
                target,
                resolved.machine,
                progress,
                stop=stop,
                limit=recipe.recovery.float_time,
                profile=latency.profile if latency is not None else None,
                could_be_dynamic=_could_be_dynamic(graph, placement.plan, resolved),
                known=ranges.reached if ranges is not None else math.nan,
            )
    decided = _decide(graph, placement, target, calibration, name, keep, memory)
    work = multiply_accumulates(decided.model).counts
    return replace(decided, latency=latency, ranges=ranges, float_layers=float_layers, work=work, begun=begun)


def _could_be_dynamic(graph: ir.Model, plan: Plan, resolved: Resolved) -> frozenset[str]:
    """Return the layers that the rung ``float`` may give ranges that are found at each run.

    Rungs do not choose weights behind such ranges again, which costs little with 8 bits alone. A profile does
    not tell what they take.
    """
    recipe, has_profile = resolved.recipe, resolved.recipe.export.prefer == LATENCY
    if has_profile or not are_plain(recipe.weights, recipe.activations):
        return frozenset()
    of_bytes = {site.node for site in plan.weights if site.format.bits == BYTE}
    return frozenset(dynamic_candidates(graph, plan, resolved.target)) & of_bytes


def _decide(
    model: ir.Model,
    placement: Placement,
    target: Target,
    calibration: Calibration,
    name: str,
    keep: WeightStorage,
    memory: Memory | None,
) -> DecidedModel:
    settings = placement.settings
    calibration = with_statistics_of_parts(calibration, placement.plan, model.graph)
    require_ranges(placement.plan, calibration)
    decisions = decide_activations(
        placement.plan,
        settings.activations,
        calibration,
        settings.activation_families,
        ScaleRules(half=placement.float_type == FLOAT16),
        placement.within,
    )
    found = {source: decision.parameters for source, decision in decisions.items()}
    on_own_grid = placement.on_own_grid(found)
    found = fit_clamps(model, placement.plan, found)
    found = raise_zero_points(model, placement.plan, target, found) | on_own_grid
    plan = without_noisy_forms(model, placement.plan, found, calibration)
    plan = expose_clamps(model, plan, on_own_grid)
    model = with_opset(model, placement.opset, name)
    quantizers = placement.quantizers
    if memory is not None:
        quantizers = {site: RememberedQuantizer(own, memory) for site, own in quantizers.items()}
    parameters = decide_all(model, plan, lambda site: found[site.source], quantizers.__getitem__, keep)
    methods = {site.tensor: item.weight_method for site, item in settings.weights.items()}
    return DecidedModel(
        model=model,
        placement=placement,
        plan=plan,
        parameters=parameters,
        unsearched=unsearched(decisions) | {name: methods[name] for name in parameters.unsearched},
    )
