"""What is decided of a calibrated model before anything is written: where layers compute, and scales."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.core.formats import BYTE
from ptq_cli.latency.measure_profile import prefer_latency
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.pipeline.trial_models import (
    CalibratedModel,
    TrialModels,
    decides_placement,
    stores_bytes,
    weights_of_few_bits,
)
from ptq_cli.placement.fastest_placement import LatencyPreference, MachineProfile
from ptq_cli.placement.kernel_costs import KernelTimes
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.wide_format import wide_format
from ptq_cli.plan.weighted_operators import dynamic_candidates
from ptq_cli.qdq.write.weight_quantizer import (
    StreamedWeights,
    in_memory,
)
from ptq_cli.recipe.check import are_plain
from ptq_cli.recipe.declaration import BITS, DYNAMIC, FLOAT, IN_FLOAT, RANGES, ROUND
from ptq_cli.recipe.recovery_rungs import mode_of, needs_ranges, recovery_rungs
from ptq_cli.recipe.sections import LATENCY, SIZE
from ptq_cli.recover.float_moves import PlanCosts, PossibleMoves
from ptq_cli.recover.ladder.dynamic_layers import DynamicChoice
from ptq_cli.recover.ladder.escalation import LEAST_GAIN_DB, choose_forms
from ptq_cli.recover.ladder.float_layers import FloatLimits, choose_float_layers, worst_output
from ptq_cli.recover.ladder.float_weights import choose_float_weights
from ptq_cli.recover.ladder.goal import MORE_FOR_TOKENS_DB, predicts_tokens
from ptq_cli.recover.ladder.more_bits import ROUND_GAINS_DB, BitsSearch
from ptq_cli.recover.quantized_layer import DecidedModel
from ptq_cli.recover.range_choice import choose_ranges
from ptq_cli.recover.recovery_context import RecoveryContext
from ptq_cli.recover.recovery_effects import ChosenForms, FloatLayers, RangesByEffect, RungEffect
from ptq_cli.setup.resolve import Resolved

MOST_OF_WORK = 0.8  # share of MatMuls from which on ranges at each run are tried for all of them
BYTES_REASON = "computes in float: in integers the file would be larger than the float model's"


def decided_model(
    source: CalibratedModel, context: RecoveryContext | None, *, in_float: bool = False
) -> DecidedModel:
    """Decide scales and integers of a model from its calibration, and recover with data if there are some.

    With ``in_float`` all layers compute in float, with weights that are integers in the file.
    """
    graph = source.graph
    float_model, output = source.float_model, source.output
    begun = ConstantsFile(output.parent, output.name) if float_model.is_apart else None
    keep = StreamedWeights(begun) if begun is not None else in_memory
    # Trials of activations decide the same weights again; those of a large model would fill the memory.
    models = TrialModels(source, {} if begun is None else None)
    if context is not None:
        context = replace(context, calibration=models.calibration)
    bits = _more_bits(source, models, context) if context is not None else None
    latency, profile, table = _place_by_time(source, models, context)
    if in_float:
        weighted = {site.node for site in models.placed(models.asked).plan.weights}
        models.place_in_float(dict.fromkeys(sorted(weighted), BYTES_REASON))
    recovered = _Recovered(placement=(first := models.placed(models.asked)))
    if context is not None and profile is not None:
        recovered = _recovered(context, models, first, profile)
    decided = models.decide(graph, recovered.placement, keep)
    return replace(
        decided,
        latency=latency,
        ranges=recovered.ranges,
        float_layers=recovered.float_layers,
        forms=recovered.forms,
        reached=recovered.reached,
        replaced=recovered.placement is not first,
        expected=table.speeds(decided.plan) if table is not None else {},
        work=multiply_accumulates(decided.model).counts,
        begun=begun,
        bits=bits,
    )


def _more_bits(source: CalibratedModel, models: TrialModels, context: RecoveryContext) -> RungEffect | None:
    """Run the rung ``bits`` on a model of which only weights are quantized, in blocks; return what it did."""
    recipe = source.resolved.recipe
    rungs, weights = recovery_rungs(recipe.recovery), recipe.weights
    is_weights_alone = mode_of(recipe.activations) == FLOAT and not needs_ranges(recipe)
    # Without blocks ONNX Runtime has no kernel that reads few bits, and the file may not be smaller for them.
    if not is_weights_alone or weights.block_size is None or BITS not in rungs or source.float_model.is_apart:
        return None

    def decide(more: Mapping[str, int], zeros: bool) -> DecidedModel:
        return models.decide(source.float_model.load(), models.with_bits(more, zeros), in_memory)

    goal = context.goal_db - (ROUND_GAINS_DB if ROUND in rungs else 0.0)
    with context.interruptions.rung() as stop:
        found = BitsSearch(context, decide, stop).choose(goal, zero_points=weights.symmetric is None)
    models.with_bits(*((found.more_bits, found.zero_points) if found is not None else ({}, False)))
    return found


def _place_by_time(
    source: CalibratedModel, models: TrialModels, context: RecoveryContext | None
) -> tuple[LatencyPreference | None, MachineProfile | None, KernelTimes | None]:
    """Leave layers in float that are faster so, by a measurement of this machine or by the table of kernels.

    Return what was measured, the profile that tells what layers in float cost, and the table, where
    anything is decided by them.
    """
    resolved, plan = source.resolved, models.placed(models.asked).plan
    latency = None
    if resolved.recipe.export.prefer == LATENCY:
        latency = prefer_latency(source.graph, plan, resolved, source.progress)
        models.place_in_float(latency.in_float)
    if latency is None and context is None and not decides_placement(resolved, source.float_model):
        return None, None, None
    sizes = context.data.one_size if context is not None else None
    if source.placed_by is not None:
        sizes = source.placed_by.sample_shapes
    table = KernelTimes(source.graph, plan, resolved.target, sizes)
    if latency is not None and latency.profile is not None:
        return replace(latency, elsewhere=table.speeds(plan)), latency.profile, table
    if decides_placement(resolved, source.float_model):
        models.place_in_float(table.in_float())
    return latency, table.mean, table


@dataclass(frozen=True, kw_only=True)
class _Recovered:
    """A placement, what the rungs before the weights did to it, and the SQNR of its worst output, in dB."""

    placement: Placement
    forms: ChosenForms | None = None
    ranges: RangesByEffect | None = None
    float_layers: FloatLayers | None = None
    reached: float = -math.inf


def _recovered(
    context: RecoveryContext, models: TrialModels, placement: Placement, profile: MachineProfile
) -> _Recovered:
    """Run the rungs that are asked for, and, unless only others are, what an output below the goal takes.

    What costs the least of the model's speed comes first.
    """
    rungs, interruptions = recovery_rungs(models.source.resolved.recipe.recovery), context.interruptions
    found = _Recovered(placement=placement)
    if RANGES in rungs:
        with interruptions.rung() as stop:
            placement, ranges = choose_ranges(context, models.build, placement, stop)
        found = _Recovered(placement=placement, ranges=ranges)
    is_only_asked = bool(rungs) and IN_FLOAT not in rungs
    if is_only_asked or interruptions.stopped or models.source.float_model.is_apart:
        return found
    models.ranged = placement
    more = MORE_FOR_TOKENS_DB if predicts_tokens(models.source.graph) else 0.0
    goal = context.wanted_db if rungs else context.goal_db + more
    placement, forms = choose_forms(context, models, placement)
    found = replace(found, placement=placement, forms=forms, reached=forms.after)
    if context.weights_first:
        return found
    makes_up = _rounding_makes_up(models, placement)
    goal -= makes_up
    # Of a model with rows of unlike size no few layers are to blame, and to rank them takes a minute.
    first = () if more or models.asked.activations.mode == DYNAMIC else (_with_float_layers,)
    for step in (*first, _at_each_run, _all_in_float):
        if found.reached >= goal or interruptions.stopped:
            break
        found = step(context, models, found, profile)
        goal = context.goal_db - makes_up
    return found


def _rounding_makes_up(models: TrialModels, placement: Placement) -> float:
    """Return by how many dB ``round``, which comes last, surely mends what weights of few bits lose."""
    rungs = recovery_rungs(models.source.resolved.recipe.recovery)
    has_few_bits = any(site.format.bits < BYTE for site in placement.plan.weights)
    return ROUND_GAINS_DB if has_few_bits and (not rungs or ROUND in rungs) else 0.0


def _all_in_float(
    context: RecoveryContext, models: TrialModels, found: _Recovered, profile: MachineProfile
) -> _Recovered:
    """Leave all layers in float, with weights that are integers in the file, if that is better.

    It takes no longer than the float model, and is the last that there is to try.
    """
    if not stores_bytes(models.source.resolved, models.source.float_model):
        return found  # Nothing of it would be integers.
    integer = models.with_float_weights((), None).plan.layers
    layers, names = found.float_layers, tuple(layer.name for layer in integer if layer.quantized)
    if layers is not None:
        layers = replace(layers, layers=names, dynamic=())
    placement = models.with_float_weights((), layers)
    with context.interruptions.rung() as stop:
        placement, reached = choose_float_weights(context, models, placement, layers, stop)
    if reached < found.reached + LEAST_GAIN_DB:
        return found
    if layers is not None:
        slower = max(0.0, profile.floating / profile.integer - 1.0)
        layers = replace(layers, after=reached, slower=slower if profile.is_measured else None)
    return replace(found, placement=placement, float_layers=layers, reached=reached)


def _at_each_run(
    context: RecoveryContext, models: TrialModels, found: _Recovered, profile: MachineProfile
) -> _Recovered:
    """Find ranges at each run, and leave layers in float, those first whose activations cost the most.

    Rows of unlike size share no range: a static model whose work is MatMuls becomes a dynamic one.
    """
    mode, placement = models.asked.activations.mode, found.placement
    if mode != DYNAMIC:
        if not _multiplies_matrices(context, models, placement.plan):
            return found
        placement = models.with_mode(DYNAMIC)
    more = MORE_FOR_TOKENS_DB if predicts_tokens(models.source.graph) else 0.0
    with context.interruptions.rung() as stop:
        choice = DynamicChoice(context, models, profile, stop)
        placement, layers = choice.layers(placement, context.wanted_db + more)
        reached = worst_output(context, models.build(placement)[0]) if layers is not None else -math.inf
    if reached < found.reached + LEAST_GAIN_DB:
        models.with_mode(mode)
        return found
    return replace(found, placement=placement, float_layers=layers, reached=reached)


def _multiplies_matrices(context: RecoveryContext, models: TrialModels, plan: Plan) -> bool:
    """Tell whether layers that may find ranges at each run do most of the work of layers with weights."""
    source = models.source
    names = frozenset(dynamic_candidates(source.graph, plan, source.resolved.target))
    work = multiply_accumulates(source.graph, context.data.one_size).counts
    each = {site.node: work.get(site.node) or 0 for site in plan.weights}
    return sum(each[name] for name in names & each.keys()) > MOST_OF_WORK * sum(each.values())


def _with_float_layers(
    context: RecoveryContext, models: TrialModels, found: _Recovered, profile: MachineProfile
) -> _Recovered:
    source, plan, recipe = models.source, found.placement.plan, models.source.resolved.recipe
    # Weights that become floats with their layers cost the outputs less then; ``round`` makes up for bytes.
    integers, makes_up = models.rounded_integers(found.placement), _rounding_makes_up(models, found.placement)
    context = replace(context, goal_db=context.goal_db - makes_up)
    is_left = bool(makes_up) or ROUND not in recovery_rungs(recipe.recovery)
    limits = FloatLimits(
        costs=_costs(source, found.placement, profile, keeps_bytes=not integers),
        possible=PossibleMoves(
            dynamic=_could_be_dynamic(source.graph, plan, source.resolved),
            has_wide=bool(wide_format(source.resolved.target, recipe.activations)),
            more_bits=frozenset(weights_of_few_bits(source.graph, found.placement, source.resolved.target)),
        ),
        weights=integers if is_left else {},
    )
    with context.interruptions.rung() as stop:
        placement, layers = choose_float_layers(context, models, found.placement, limits, stop)
    # Bytes of layers in float may cost the outputs too much.
    with context.interruptions.rung() as stop:
        placement, reached = choose_float_weights(context, models, placement, layers, stop)
    return replace(found, placement=placement, float_layers=layers, reached=reached)


def _costs(
    source: CalibratedModel, placement: Placement, profile: MachineProfile, *, keeps_bytes: bool
) -> PlanCosts:
    # Which weights are integers decides nothing of the time where all compute in float.
    if source.resolved.recipe.export.prefer == SIZE or not placement.plan.activations:
        return PlanCosts.of_size(source.graph, placement.plan, keeps_bytes=keeps_bytes)
    return PlanCosts.of_time(source.graph, placement.target_plan, profile)


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
