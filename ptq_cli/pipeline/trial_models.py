"""Quantized models of one calibration, each with other layers in float: what recovery compares."""

import gc
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from ptq_cli.amax.decide import ScaleRules
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import FloatArray
from ptq_cli.core.formats import BYTE
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.models.files.stored import SMALLEST_MAPPED, StoredModel
from ptq_cli.models.graph_reading import every_node
from ptq_cli.pipeline.statement import PlacementFacts
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
from ptq_cli.plan.fitted_grids import expose_clamps, fit_clamps, raise_zero_points
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.plan.target.wide_format import wide_format
from ptq_cli.qdq.write.site_parameters import (
    decide_all,
)
from ptq_cli.qdq.write.weight_quantizer import (
    Memory,
    RememberedQuantizer,
    WeightStorage,
    in_memory,
)
from ptq_cli.recipe.check import are_plain, has_plain_weights, overridden
from ptq_cli.recipe.declaration import AUTO, ROW
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recipe.sections import FLOAT16, ActivationSettings, OverrideSettings, WeightSettings
from ptq_cli.recover.float_moves import FLOAT_REASON, NO_MOVE, LayerMove
from ptq_cli.recover.ladder.weight_noise import Rounded
from ptq_cli.recover.quantized_layer import DecidedModel, with_opset
from ptq_cli.recover.recovery_effects import FloatLayers
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class CalibratedModel:
    """A float model with its calibration, and where its quantized form goes.

    Attributes:
        graph: of the float model; what is decided takes it.
        output: the quantized model's file. Large constants go where its data will be.
        plan: what the target quantizes, if that is known already.
        placed_by: what decided where layers compute, if a file is made again.
    """

    resolved: Resolved
    calibration: Calibration
    float_model: StoredModel
    graph: ir.Model
    run: RunDirectory
    output: Path
    plan: Plan | None = None
    placed_by: PlacementFacts | None = None
    progress: ProgressCallback = silent


def decides_placement(resolved: Resolved, float_model: StoredModel) -> bool:
    """Tell whether nobody says what is preferred: then a file has to be as fast and as small as float."""
    recipe = resolved.recipe
    is_auto = recipe.export.prefer == AUTO and are_plain(recipe.weights, recipe.activations)
    return is_auto and stores_bytes(resolved, float_model)


def stores_bytes(resolved: Resolved, float_model: StoredModel) -> bool:
    """Tell whether all weights are bytes that ONNX Runtime can make floats of when it opens a file."""
    weights = resolved.recipe.weights
    has_bytes = has_plain_weights(weights) and weights.bits in (None, BYTE)
    return has_bytes and resolved.target.runtime == ONNXRUNTIME and not float_model.is_apart


def weights_of_few_bits(graph: ir.Model, placement: Placement, target: Target) -> dict[str, int | None]:
    """Return the layers whose weights may have 8 bits instead, with the size of their blocks."""
    rules = {node.name or "": target.op.get(node.op_type) for node in every_node(graph.graph)}
    found = {}
    for site, family in placement.families.items():
        rule = rules.get(site.node)
        has_kernel = rule is not None and rule.blocks is not None and BYTE in rule.blocks.bits
        is_plain = isinstance(family, ScaledWeights) and family.dtype is None
        if is_plain and site.format.bits < BYTE and (site.block_size is None or has_kernel):
            found[site.node] = site.block_size
    return found


class TrialModels:
    """Quantized models of one calibration, by their placement."""

    def __init__(self, source: CalibratedModel, memory: Memory | None) -> None:
        self.source, self._memory = source, memory
        self.calibration = with_moved_statistics(source.calibration, source.graph.graph)
        self.asked = self._from_begin = tensor_recipe(source.resolved.recipe)
        self.ranged: Placement | None = None
        self._last: tuple[TensorRecipe, Placement | None] = (self.asked, None)
        self._float_weights: frozenset[str] = frozenset()  # layers whose weights are floats in the file

    @cached_property
    def _plan(self) -> Plan:
        source = self.source
        return source.plan if source.plan is not None else make_plan(source.graph, source.resolved.target)

    def placed(self, asked: TensorRecipe) -> Placement:
        """Return the placement of what is asked for, with floats for the weights that need them."""
        known, found = self._last
        if known is asked and found is not None:
            return found
        products = {name: why for name, why in asked.products.items() if name not in self._float_weights}
        faster = {**asked.faster, **dict.fromkeys(sorted(self._float_weights), FLOAT_REASON)}
        wanted = replace(asked, products={**self._always_float, **products}, faster=faster)
        found = self._place(wanted)
        if products:
            # What lies between layers in float is in float, too.
            stored = {site.node for site in found.plan.weights} | found.settings.excluded.keys()
            if left := self._of_bytes - self._float_weights - stored:
                reasons = {layer.name: layer.reason for layer in found.plan.layers}
                more = {name: reasons[name] for name in sorted(left)}
                found = self._place(replace(wanted, products={**wanted.products, **more}))
        self._last = (asked, found)
        return found

    def _place(self, asked: TensorRecipe) -> Placement:
        source = self.source
        return place(source.graph, self._plan, source.resolved.target, asked, self.calibration)

    def place_in_float(self, names: Mapping[str, str]) -> None:
        """Leave layers in float, by name with the reason, whatever else is asked for."""
        if not names:
            return
        included = self.placed(self.asked).settings.included
        names = {name: why for name, why in names.items() if name not in included}
        self.asked = self._from_begin = self._in_float(self._from_begin, names)

    def with_forms(self, in_float: Mapping[str, str], products: Mapping[str, str]) -> Placement:
        """Return the placement with these forms of recurrent layers, which what follows keeps."""
        before = self._from_begin
        faster, products = {**before.faster, **in_float}, {**before.products, **products}
        self.asked = replace(before, faster=faster, products=products)
        return self.without()

    def with_mode(self, mode: str | None) -> Placement:
        """Return the placement with another mode of activations, which what follows keeps."""
        before = self._from_begin
        self._from_begin = replace(before, activations=replace(before.activations, mode=mode))
        self.asked = replace(self.asked, activations=self._from_begin.activations)
        return self.without()

    def with_bits(self, bits: Mapping[str, int], zero_points: bool) -> Placement:
        """Return the placement with these bits for weights of layers, and zero points for all blocks.

        Overrides of the recipe win, and what follows keeps it.
        """
        recipe = self.source.resolved.recipe
        own = [OverrideSettings(match=name, weights=WeightSettings(bits=most)) for name, most in bits.items()]
        weights = overridden(recipe.weights, WeightSettings(symmetric=False) if zero_points else None)
        self._from_begin = replace(self._from_begin, weights=weights, override=[*own, *recipe.override])
        self.asked = replace(self.asked, weights=weights, override=self._from_begin.override)
        return self.placed(self.asked)

    def without(self, move: LayerMove = NO_MOVE) -> Placement:
        """Return a placement with what a move changes, and the ranges that were chosen."""
        recipe, before = self.source.resolved.recipe, self.asked
        wide = ActivationSettings(dtype=wide_format(self.source.resolved.target, recipe.activations))
        more_bits = WeightSettings(bits=BYTE)
        of_bytes = dict.fromkeys((*move.more_bits, *filter(self._few_bits.__contains__, move.in_float)))
        asked = replace(
            before,
            dynamic=dict.fromkeys(move.dynamic, ROW),
            override=[
                *(OverrideSettings(match=name, weights=more_bits) for name in of_bytes),
                *before.override,
                *(OverrideSettings(match=name, activations=wide) for name in move.wide),
            ],
        )
        found = self.placed(self._in_float(asked, dict.fromkeys(move.in_float, FLOAT_REASON)))
        return found.with_ranges_of(self.ranged) if self.ranged is not None else found

    def rounded(self, placement: Placement) -> Rounded:
        """Return the bytes of layers in float as what they stand for, by the layer and the constant."""
        return self._rounded(placement, lambda site: site.as_product and site.node in self._of_bytes)

    def rounded_integers(self, placement: Placement) -> Rounded:
        """Return likewise the integers that are floats where their layer is in float."""
        if self._of_bytes:
            return {}
        return self._rounded(placement, lambda _site: True)

    def _rounded(self, placement: Placement, has: Callable[[WeightSite], bool]) -> Rounded:
        trial = self.decide(self.source.float_model.load(), placement, in_memory)
        found: dict[str, dict[str, FloatArray]] = {}
        own = trial.model.graph.initializers
        for site in filter(has, trial.plan.weights):
            decided = trial.parameters.decided[site]
            # Values out of a codebook, and constants of nested graphs, are not looked at.
            if decided.parameters is not None and site.tensor in own:
                found.setdefault(site.node, {})[site.tensor] = decided.on_grid(site)
        return found

    def with_float_weights(self, names: Collection[str], layers: FloatLayers | None) -> Placement:
        """Return the placement with ``layers`` in float, and floats as the weights of those named."""
        self._float_weights, self._last = frozenset(names), (self.asked, None)
        return self.without(layers.move if layers is not None else NO_MOVE)

    def _in_float(self, asked: TensorRecipe, names: Mapping[str, str]) -> TensorRecipe:
        """Return what is asked for with more layers in float, whose weights are bytes in the file.

        They become floats once, when the model is opened, so that a run takes no longer for it.
        """
        products = {name: why for name, why in names.items() if name in self._of_bytes | self._few_bits}
        faster = {name: why for name, why in names.items() if name not in products}
        return replace(asked, faster={**asked.faster, **faster}, products={**asked.products, **products})

    @cached_property
    def _always_float(self) -> dict[str, str]:
        """Layers without an integer kernel, by name with the reason: a DequantizeLinear costs each run."""
        rules = self.source.resolved.target.op
        named = {node.name or "": rules.get(node.op_type) for node in every_node(self.source.graph.graph)}
        found = {name: named[name] for name in sorted(self._of_bytes)}
        return {name: rule.note for name, rule in found.items() if rule and not rule.integer_kernel}

    @cached_property
    def _of_bytes(self) -> frozenset[str]:
        if not stores_bytes(self.source.resolved, self.source.float_model):
            return frozenset()
        plan = self._place(tensor_recipe(self.source.resolved.recipe)).plan
        return frozenset(site.node for site in plan.weights if site.format.bits == BYTE)

    @cached_property
    def _few_bits(self) -> frozenset[str]:
        """Layers whose weights of few bits become bytes when they compute in float."""
        resolved = self.source.resolved
        if resolved.target.runtime != ONNXRUNTIME or self.source.float_model.is_apart:
            return frozenset()
        placement = self._place(tensor_recipe(resolved.recipe))
        found = weights_of_few_bits(self.source.graph, placement, resolved.target)
        return frozenset(name for name, block in found.items() if block is None)

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
