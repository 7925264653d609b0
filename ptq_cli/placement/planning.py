"""A model is planned until quantizers, target and ranges agree, with the integers that a recipe asks for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.formats import BY_NAME, FloatFormat, IntegerFormat
from ptq_cli.models.graph_reading import every_node
from ptq_cli.placement.noisy_layers import MeasuredRanges, float_concats
from ptq_cli.placement.tensor_settings import TensorSettings
from ptq_cli.placement.weight_families import with_tables
from ptq_cli.plan.cost_benefit import unprofitable_layers
from ptq_cli.plan.planner import ACTIVATIONS_IN_FLOAT, LayerChoices, make_plan
from ptq_cli.plan.sites import ActivationSite, LayerPlan, Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.weighted_operators import dynamic_operators, slow_layers
from ptq_cli.recipe.declaration import FLOAT
from ptq_cli.recipe.quantizer_families import ActivationFamily, ScaledActivations, ScaledWeights, WeightFamily

FOLLOWERS = (
    "bias of",
    "part of",
    "merged into",
)  # how reasons begin of what is computed with another operator


def with_formats(
    model: ir.Model, plan: Plan, families: Mapping[str, ActivationFamily], target: Target
) -> Plan:
    """Return the plan with each activation's integers as its source's quantizer asks.

    A layer whose edges then have integers of several types, or of a type that the target computes in float,
    stays between its pairs, and says that it is computed in float there.
    """
    sites = {name: as_asked(site, families[site.source]) for name, site in plan.activations.items()}
    if sites == plan.activations:
        return plan
    layers = {layer.name: layer for layer in plan.layers}
    for node in every_node(model.graph):
        layer = layers[node.name or ""]
        if layer.quantized and (reason := _float_reason(node, layer, sites, layers, target)):
            layers[layer.name] = replace(layer, quantized=False, between_pairs=True, reason=reason)
    return replace(plan, activations=sites, layers=tuple(layers[layer.name] for layer in plan.layers))


def as_asked(site: ActivationSite, family: ActivationFamily) -> ActivationSite:
    """Return a site with the integers that a quantizer asks for."""
    if not isinstance(family, ScaledActivations):
        return site
    dtype = site.format if family.dtype is None else BY_NAME[family.dtype]
    if family.bits is not None and isinstance(dtype, IntegerFormat):
        dtype = replace(dtype, bits=family.bits)
    symmetric = site.symmetric if family.symmetric is None else family.symmetric
    # ONNX allows a zero point of 0 alone for float8 and float4 (QuantizeLinear, opset 19 and 23).
    symmetric = symmetric or isinstance(dtype, FloatFormat)
    return replace(site, format=dtype, symmetric=symmetric)


def _float_reason(
    node: ir.Node,
    layer: LayerPlan,
    sites: Mapping[str, ActivationSite],
    layers: Mapping[str, LayerPlan],
    target: Target,
) -> str:
    """Reason why a layer is computed in float between its pairs, or an empty string if it is not."""
    edges = [value.name or "" for value in (*node.inputs, *node.outputs) if value is not None]
    formats = [sites[edge].format for edge in edges if edge in sites]
    # Those of fewer bits are held in the type's own integers, which is what a kernel reads.
    held = [item.whole if isinstance(item, IntegerFormat) else item for item in formats]
    names = list(dict.fromkeys(item.name for item in held))
    simulated = [name for name in names if name in target.activation.simulated]
    if simulated:
        return f"its edges are {' and '.join(names)}: target {target.name} computes {simulated[0]} in float"
    if len(names) > 1 and not (target.activation.mixed or target.activation.converted):
        return f"its edges are {' and '.join(names)}: an integer kernel supports one type, so it is in float"
    if layer.reason.startswith(FOLLOWERS):
        before = [value.producer() for value in node.inputs if value is not None]
        moved = [item.name or "" for item in before if item is not None]
        # What was merged into a float operator is computed in float with it.
        if any(layers[name].between_pairs for name in moved if name in layers):
            return f"{layer.reason}, in float"
    return ""


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Plans a model again and again, with what its quantizers and the target demand each time.

    Attributes:
        in_float: layers whose weights have quantizers without integer kernels, with the reason.
        looked_up: layers whose weights a runtime sees as floats.
        products: those of them whose weights are integers that become floats when the model is opened.
        dynamic: layers whose activations become integers at each run, with what shares a scale of them.
        alone: the plan that the target alone makes.
    """

    model: ir.Model
    target: Target
    in_float: Mapping[str, str]
    looked_up: Collection[str]
    products: Collection[str]
    dynamic: Mapping[str, str]
    alone: Plan
    may_be_empty: bool

    @classmethod
    def of(
        cls,
        model: ir.Model,
        target_plan: Plan,
        target: Target,
        settings: TensorSettings,
        *,
        may_be_empty: bool,
    ) -> "Planning":
        """Return a planning that meets the settings of a model's tensors."""
        families, modes = settings.weight_families, settings.modes
        reasons = {name: ACTIVATIONS_IN_FLOAT for name, mode in modes.items() if mode == FLOAT}
        for site, family in families.items():
            if modes.get(site.node) != FLOAT:
                reasons[site.node] = _reason_in_float(family, target)
        return cls(
            model=model,
            target=target,
            in_float={node: why for node, why in reasons.items() if why} | dict(settings.products),
            looked_up={site.node for site, family in families.items() if family.float_reason}
            | settings.products.keys(),
            products=settings.products.keys(),
            dynamic=settings.dynamic,
            alone=target_plan,
            may_be_empty=may_be_empty,
        )

    def unasked(self, settings: TensorSettings, target_plan: Plan) -> dict[str, str]:
        """Return the layers that are not dynamic although their mode is, with the reason.

        These are layers that an override has to ask for, and those whose weights the target leaves in float.
        """
        weighted = {site.node for site in settings.weight_families}
        computing = dynamic_operators(self.target)
        left = {
            layer.name: layer.reason
            for layer in target_plan.layers
            if layer.op in computing and layer.name in self.dynamic and layer.name not in weighted
            if not layer.quantized and layer.reason
        }
        slow = slow_layers(self.model, self.target)
        unasked = {name for name in self.dynamic if name not in settings.asked}
        return left | {name: reason for name, reason in slow.items() if name in unasked}

    def plan(
        self,
        excluded: Mapping[str, str],
        unjoined: Mapping[str, str] = MappingProxyType({}),
        *,
        empty: bool = False,
    ) -> Plan:
        """Return the plan without the layers that are excluded, and with these joins in float."""
        choices = LayerChoices(
            in_float=self.in_float,
            looked_up=self.looked_up,
            products=self.products,
            excluded=excluded,
            unjoined=unjoined,
            dynamic=self.dynamic,
        )
        may_be_empty = self.may_be_empty or empty
        return make_plan(self.model, self.target, choices, may_be_empty=may_be_empty, alone=self.alone)


def settled_plan(
    planning: Planning,
    settings: TensorSettings,
    target_plan: Plan,
    excluded: dict[str, str],
    calibration: Calibration | None,
    *,
    everything: bool,
) -> tuple[Plan, TensorSettings]:
    """Return the plan without what is not worth its pairs or joins unlike ranges, and its settings."""
    # The order matters: what a layer saves depends on its neighbors, joins on what is left of them, and
    # formats on the final plan.
    plan, excluded = _worth_it(planning, settings, target_plan, excluded, everything=everything)
    settings = settings.of(plan, target_plan)
    if calibration is not None:
        model, target, families = planning.model, planning.target, settings.activation_families
        measured = MeasuredRanges(calibration=calibration, settings=settings.activations, families=families)
        formatted = with_formats(model, plan, families, target)
        again = partial(planning.plan, excluded)
        joins = float_concats(model, formatted, target, measured, settings.included, again)
        plan = planning.plan(excluded, joins) if joins else plan
    settings = settings.of(plan, target_plan)
    plan = with_formats(planning.model, plan, settings.activation_families, planning.target)
    return with_tables(planning.model, plan, settings, planning.target), settings


def _worth_it(
    planning: Planning,
    settings: TensorSettings,
    target_plan: Plan,
    excluded: dict[str, str],
    *,
    everything: bool,
) -> tuple[Plan, dict[str, str]]:
    """Return the plan without layers that are not worth their pairs, and all that it leaves out."""
    changed = planning.in_float or planning.dynamic or excluded
    plan = planning.plan(excluded) if changed else target_plan
    # --all-layers: nothing is weighed against what its conversions cost.
    if everything:
        return plan, excluded
    found = unprofitable_layers(
        planning.model,
        plan,
        planning.target,
        settings.included,
        lambda more: planning.plan({**excluded, **more}, empty=True),
    )
    excluded = {**excluded, **found}
    return planning.plan(excluded) if found else plan, excluded


def _reason_in_float(family: WeightFamily, target: Target) -> str:
    """Reason why a layer with such a weight is computed in float, or an empty string if it is not."""
    if family.float_reason:
        return family.float_reason
    if isinstance(family, ScaledWeights) and family.block_size is not None:
        return (
            f"its weight is {family.bits} bits in blocks of {family.block_size}, which target {target.name} "
            "computes in float"
        )
    return ""
