"""What is decided of a calibrated model before anything is written; once for weights that models share."""

import gc
import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.decide import LARGEST_BIAS, ScaleRules
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.latency.measure_profile import prefer_latency
from ptq_cli.models.files.mapped_constants import ConstantsFile, mapped
from ptq_cli.models.files.stored import SMALLEST_MAPPED, StoredModel
from ptq_cli.placement.fastest_placement import MachineProfile
from ptq_cli.placement.noisy_layers import without_noisy_forms
from ptq_cli.placement.placed_graph import Placement, place
from ptq_cli.placement.ranges import (
    decide_activations,
    require_ranges,
    unsearched,
    with_moved_statistics,
    with_statistics_of_parts,
)
from ptq_cli.placement.tensor_settings import TensorRecipe, tensor_recipe
from ptq_cli.plan.cost_benefit import Sizes, integer_time, savings
from ptq_cli.plan.fitted_grids import expose_clamps, fit_clamps, raise_zero_points
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import BiasSite, Plan, WeightSite
from ptq_cli.plan.weighted_operators import dynamic_candidates
from ptq_cli.qdq.write.site_parameters import (
    DecidedBias,
    DecidedConstants,
    DecidedWeight,
    Parameters,
    bias_scale,
    decide_all,
)
from ptq_cli.qdq.write.weight_quantizer import (
    Memory,
    RememberedQuantizer,
    StreamedWeights,
    WeightStorage,
    in_memory,
)
from ptq_cli.recipe.check import are_plain
from ptq_cli.recipe.declaration import IN_FLOAT, RANGES, ROW
from ptq_cli.recipe.recovery_rungs import recovery_rungs
from ptq_cli.recipe.sections import FLOAT16, LATENCY, RecoverySettings
from ptq_cli.recover.escalation import FORM_REASON, QUICK_WORK, choose_forms
from ptq_cli.recover.float_layers import FLOAT_REASON, FloatLimits, choose_float_layers
from ptq_cli.recover.layer_state import bias_values
from ptq_cli.recover.quantized_layer import DecidedModel, QuantizedLayer, quantized_layers, with_opset
from ptq_cli.recover.range_choice import choose_ranges
from ptq_cli.recover.recovery_context import RecoveryContext
from ptq_cli.recover.recovery_effects import GOAL_DB, ChosenForms, FloatLayers, RangesByEffect
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import RunDirectory

_Floats = npt.NDArray[np.float64]
CLOSE = 1e-6  # a float32 keeps a number to a share of 6e-8


@dataclass(frozen=True)
class _Bias:
    """A layer's bias in real units, and its step, which is 0 of a bias in floats."""

    values: _Floats
    step: _Floats


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """What was decided of a layer.

    Attributes:
        bias: None if there is none that could be changed.
        nearest: the bias before anything was recovered.
    """

    weight: DecidedWeight
    bias: _Bias | None
    nearest: _Bias | None


@dataclass(frozen=True)
class GivenWeights:
    """The weights of a model that were decided with an earlier one.

    Attributes:
        left: number of layers whose weights can still be chosen.
    """

    sites: tuple[WeightSite, ...] = ()
    left: int = 0


class DecidedWeights:
    """The weights of models that belong together, by their floats and by how they are quantized.

    Only layers whose weights can be chosen again are in it: all others are rounded to nearest, which gives
    the same integers in each model.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _Decision] = {}
        self._nearest: dict[bytes, _Bias | None] = {}

    def give(self, made: DecidedModel, float_model: StoredModel) -> tuple[DecidedModel, GivenWeights]:
        """Return a model with what was decided before, and which weights took it.

        A weight keeps its own integers if its bias would not fit into int32 with the scale that was decided.
        """
        graph = float_model.load()
        taken, layers, parameters = [], _layers(graph, made), made.parameters
        for key, layer in layers:
            # Before anything is replaced: what rounding to nearest gives tells later whether two biases
            # were equal.
            nearest = _bias(graph, made.parameters, layer)
            self._nearest.setdefault(key, nearest)
            found = self._known.get(key)
            changes = _changes(made.parameters, layer, found, nearest) if found is not None else None
            if changes is not None:
                parameters = parameters.changed(changes)
                taken.append(layer.site)
        given = GivenWeights(tuple(taken), left=len(layers) - len(taken))
        return replace(made, parameters=parameters), given

    def learn(self, made: DecidedModel, float_model: StoredModel) -> None:
        """Keep the weights that are not known yet, as the model has them."""
        graph = float_model.load()
        for key, layer in _layers(graph, made):
            if key not in self._known:
                self._known[key] = _Decision(
                    weight=made.parameters.decided[layer.site],
                    bias=_bias(graph, made.parameters, layer),
                    nearest=self._nearest[key],
                )


def _layers(graph: ir.Model, made: DecidedModel) -> list[tuple[bytes, QuantizedLayer]]:
    """Return the layers whose weights can be chosen again, each with a digest of the weight and its form."""
    layers, _ = quantized_layers(graph, made)
    found = []
    for layer in layers.values():
        # Names differ between files that hold the same weight; how it is quantized may not.
        digest = hashlib.sha256(f"{replace(layer.site, tensor='', node='')}".encode())
        with mapped(graph.graph.initializers[layer.site.tensor]) as weight:
            digest.update(f"{weight.dtype} {weight.shape}".encode())
            digest.update(np.ascontiguousarray(weight).tobytes())
        found.append((digest.digest(), layer))
    return found


def _bias(graph: ir.Model, parameters: Parameters, layer: QuantizedLayer) -> _Bias | None:
    values = bias_values(graph, parameters, layer)
    if values is None:
        return None
    step = np.zeros(1)
    if isinstance(layer.bias, BiasSite):
        step = parameters.biases[layer.bias].scale.astype(np.float64)
    return _Bias(values, step)


def _changes(
    parameters: Parameters, layer: QuantizedLayer, decision: _Decision, nearest: _Bias | None
) -> DecidedConstants | None:
    """Return a decision as constants of a layer; None if it does not fit the layer."""
    own, found = parameters.decided[layer.site], decision.weight.parameters
    if found is None or own.parameters is None or found.scale.shape != own.parameters.scale.shape:
        return None
    weights = {layer.site: replace(own, parameters=found, stored=decision.weight.stored)}
    if layer.bias is None or nearest is None:
        return DecidedConstants(decided=weights)
    # A recovered bias belongs to the layer that it was recovered in: one with another float bias keeps
    # its own.
    bias = decision.bias if decision.bias is not None and _is_same(decision.nearest, nearest) else nearest
    if isinstance(layer.bias, str):
        return DecidedConstants(decided=weights, floats={layer.bias: bias.values.astype(np.float32)})
    if layer.parameters is None:
        return None
    made = DecidedBias.of(bias.values, bias_scale(layer.parameters, found))
    if np.abs(made.integers.astype(np.int64)).max(initial=0) > LARGEST_BIAS:
        return None
    return DecidedConstants(decided=weights, biases={layer.bias: made})


def _is_same(one: _Bias | None, other: _Bias) -> bool:
    """Tell whether two biases are one in floats, each rounded with its own step."""
    if one is None or one.values.shape != other.values.shape:
        return False
    # Each was rounded to its own step, so two equal float biases may be a step of each apart.
    tolerance = one.step + other.step + CLOSE * np.abs(other.values)
    return bool((np.abs(one.values - other.values) <= tolerance).all())


@dataclass(frozen=True, kw_only=True)
class CalibratedModel:
    """A float model with its calibration, and where its quantized form goes.

    Attributes:
        graph: of the float model; what is decided takes it.
        output: the quantized model's file. Large constants go where its data will be.
        plan: what the target quantizes, if that is known already.
    """

    resolved: Resolved
    calibration: Calibration
    float_model: StoredModel
    graph: ir.Model
    run: RunDirectory
    output: Path
    plan: Plan | None = None
    progress: ProgressCallback = silent


def decided_model(source: CalibratedModel, context: RecoveryContext | None) -> DecidedModel:
    """Decide scales and integers of a model from its calibration, and recover with data if there are some."""
    resolved, graph, progress = source.resolved, source.graph, source.progress
    recipe = resolved.recipe
    float_model, output = source.float_model, source.output
    begun = ConstantsFile(output.parent, output.name) if float_model.is_apart else None
    keep = StreamedWeights(begun) if begun is not None else in_memory
    # Trials of activations decide the same weights again; those of a large model would fill the memory.
    models = _Models(source, {} if begun is None else None)
    placement = models.placed(models.asked)
    if context is not None:
        context = replace(context, calibration=models.calibration)
    latency = None
    if recipe.export.prefer == LATENCY:
        latency = prefer_latency(graph, placement.plan, resolved, progress)
        models.asked = replace(models.asked, faster=latency.in_float)
        placement = models.placed(models.asked)
    recovered = _Recovered(placement)
    if context is not None:
        profile = latency.profile if latency is not None else None
        recovered = _recovered(context, models, placement, profile)
    placement = recovered.placement
    decided = models.decide(graph, placement, keep)
    work = multiply_accumulates(decided.model).counts
    return replace(
        decided,
        latency=latency,
        ranges=recovered.ranges,
        float_layers=recovered.float_layers,
        forms=recovered.forms,
        work=work,
        begun=begun,
    )


@dataclass(frozen=True)
class _Recovered:
    """A placement, and what the rungs before the weights did to it."""

    placement: Placement
    forms: ChosenForms | None = None
    ranges: RangesByEffect | None = None
    float_layers: FloatLayers | None = None

    @property
    def reached(self) -> float:
        """SQNR of the worst output but for what the weights lose, in dB."""
        return self.float_layers.after if self.float_layers is not None else -math.inf


def _recovered(
    context: RecoveryContext, models: "_Models", placement: Placement, profile: MachineProfile | None
) -> _Recovered:
    """Run the rungs that are asked for, or, where none is, those that an output below 20 dB takes."""
    source = models.source
    rungs, interruptions = recovery_rungs(source.resolved.recipe.recovery), context.interruptions
    found = _Recovered(placement)
    if not rungs and not source.float_model.is_apart:
        placement, forms = choose_forms(context, models, placement)
        found = _Recovered(placement, forms)
        if forms.is_enough or interruptions.stopped:
            return found
        # A few layers in float are mostly enough, and found in a quarter of the time that ranges take.
        found = _with_float_layers(context, models, found, profile)
        if found.reached >= GOAL_DB or interruptions.stopped:
            return found
    start = replace(found, placement=placement, float_layers=None)
    if RANGES in rungs or found.forms is not None:
        # What nobody asked for may take half a minute.
        own = replace(context, most_work=QUICK_WORK) if found.forms is not None else context
        with interruptions.rung() as stop:
            ranged, ranges = choose_ranges(own, models.build, placement, stop)
        start = replace(start, placement=ranged, ranges=ranges)
    if (IN_FLOAT not in rungs and found.forms is None) or interruptions.stopped:
        return start
    again = _with_float_layers(context, models, start, profile)
    return again if found.forms is None or again.reached > found.reached else found


def _with_float_layers(
    context: RecoveryContext, models: "_Models", found: _Recovered, profile: MachineProfile | None
) -> _Recovered:
    source, ranges = models.source, found.ranges
    models.ranged = found.placement
    limits = FloatLimits(
        slower=source.resolved.recipe.recovery.float_time,
        profile=profile,
        could_be_dynamic=_could_be_dynamic(source.graph, found.placement.plan, source.resolved),
    )
    known = ranges.reached if ranges is not None else math.nan
    with context.interruptions.rung() as stop:
        placement, layers = choose_float_layers(context, models, found.placement, limits, stop, known=known)
    more = layers.with_more()
    is_limited = limits.slower != RecoverySettings().float_time
    if found.forms is not None and not is_limited and layers.after < GOAL_DB <= more.after:
        # What nobody has set a limit for may take all the time that the integers save.
        sizes = Sizes.of(source.graph)
        plan = found.placement.plan
        saved = savings(source.graph, plan, sizes).work / integer_time(source.graph, plan, sizes)
        if more.slower < saved:
            placement = models.without(dict.fromkeys(more.layers, FLOAT_REASON), more.dynamic)
            layers = more
    return replace(found, placement=placement, float_layers=layers)


class _Models:
    """Quantized models of one calibration, by their placement."""

    def __init__(self, source: CalibratedModel, memory: Memory | None) -> None:
        self.source, self._memory = source, memory
        self.calibration = with_moved_statistics(source.calibration, source.graph.graph)
        self.asked = tensor_recipe(source.resolved.recipe)
        self.ranged: Placement | None = None

    @cached_property
    def _plan(self) -> Plan:
        source = self.source
        return source.plan if source.plan is not None else make_plan(source.graph, source.resolved.target)

    def placed(self, asked: TensorRecipe) -> Placement:
        """Return the placement of what is asked for."""
        source = self.source
        return place(source.graph, self._plan, source.resolved.target, asked, self.calibration)

    def with_forms(self, in_float: Mapping[str, str], products: frozenset[str]) -> Placement:
        """Return the placement with these forms of recurrent layers, which what follows keeps."""
        faster = {name: why for name, why in self.asked.faster.items() if why != FORM_REASON}
        self.asked = replace(self.asked, faster={**faster, **in_float}, products=products)
        return self.placed(self.asked)

    def without(self, in_float: Mapping[str, str], dynamic: Collection[str]) -> Placement:
        """Return a placement with more layers in float or with ranges at each run, and the ranges chosen."""
        faster, by_row = {**self.asked.faster, **in_float}, dict.fromkeys(dynamic, ROW)
        found = self.placed(replace(self.asked, faster=faster, dynamic=by_row))
        return found.with_ranges_of(self.ranged) if self.ranged is not None else found

    def build(self, placed: Placement) -> tuple[ir.Model, Plan]:
        """Return the quantized graph of a placement, and its plan."""
        float_model = self.source.float_model
        if float_model.size >= SMALLEST_MAPPED:  # Earlier trials are cycles, which nothing looks for here.
            gc.collect()
        trial = self.decide(float_model.load(), placed, in_memory)
        trial.write(trial.model)
        return trial.model, trial.plan

    def decide(self, model: ir.Model, placement: Placement, keep: WeightStorage) -> DecidedModel:
        """Decide the parameters of a placement."""
        settings, target = placement.settings, self.source.resolved.target
        calibration = with_statistics_of_parts(self.calibration, placement.plan, model.graph)
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
        model = with_opset(model, placement.opset, self.source.run.float_model.name)
        quantizers, memory = placement.quantizers, self._memory
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
