"""Which quantizer goes where: the target's plan with the recipe's families of quantizers."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import onnx_ir as ir

from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.numbers.arithmetic import QuantParameters
from ptq_cli.core.numbers.formats import FloatFormat
from ptq_cli.models.converting.opset import QUARTER_BYTE_OPSET
from ptq_cli.pipeline.exporting.placing.activation_formats import with_formats
from ptq_cli.pipeline.exporting.placing.half_scales import HalfScaleQuantizer
from ptq_cli.pipeline.exporting.placing.unlike_joins import MeasuredRanges, found_unlike
from ptq_cli.pipeline.exporting.placing.weight_families import site_in_blocks, weight_quantizer, weight_site
from ptq_cli.pipeline.exporting.ranges.tensor_ranges import never_seen
from ptq_cli.pipeline.exporting.settings.block_kernels import block_rule, with_tables
from ptq_cli.pipeline.exporting.settings.target_limits import require_alike
from ptq_cli.pipeline.exporting.settings.tensor_settings import TensorRecipe, TensorSettings, tensor_settings
from ptq_cli.plan.formats.block_tables import table_bits
from ptq_cli.plan.formats.kernel_formats import without_kernels
from ptq_cli.plan.layers.dynamic_layers import dynamic_operators, slow_layers
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.questions.nested_layers import layers_never_run
from ptq_cli.plan.reasons import ACTIVATIONS_IN_FLOAT
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.worth.worthless import worthless_layers
from ptq_cli.qdq.proof.target_rules import FLOAT_OPSETS
from ptq_cli.qdq.write.weights.integer_storage import PACKED_OPSET
from ptq_cli.qdq.write.weights.weight_quantizer import BYTE, HALF_BYTE, QUARTER_BYTE, WeightQuantizer
from ptq_cli.recipe.activation_modes import FLOAT, STATIC
from ptq_cli.recipe.quantizer_settings import (
    CenterWeights,
    ScaledActivations,
    ScaledWeights,
    WeightFamily,
)
from ptq_cli.recipe.quantizer_words import describe_activations, describe_weights
from ptq_cli.recipe.schema import FLOAT16, FLOAT32, AmaxSettings

OUTPUTS_OF_QUARTERS = 4
"""MatMulNBits of ONNX Runtime 1.31 gives wrong numbers for 2 bits if their number is not a multiple of it."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A plan whose weights have the formats of their quantizers.

    Attributes:
        plan: what is quantized.
        target_plan: what the target would quantize, had it the say in everything.
        settings: of each tensor, for the plan that the target alone makes.
        families: the quantizer of each weight, by the plan's site.
        quantizers: the same, ready to be asked.
        opset: the oldest that the target and its integers need.
        never_run: layers of nested graphs that the calibration never ran, with the reason; they stay float.
        float_type: of what is not quantized, and of all scales.
    """

    plan: Plan
    target_plan: Plan
    settings: TensorSettings
    families: Mapping[WeightSite, WeightFamily]
    quantizers: Mapping[WeightSite, WeightQuantizer]
    opset: int
    never_run: Mapping[str, str] = field(default_factory=dict)
    float_type: str = FLOAT32

    @property
    def weight_counts(self) -> dict[str, int]:
        """How many weights are stored as what."""
        return dict(Counter(describe_weights(family) for family in self.families.values()))

    @property
    def activation_counts(self) -> dict[str, int]:
        """How many activations have which quantizer."""
        families = self.settings.activation_families
        return dict(Counter(describe_activations(families[source]) for source in self.plan.sources))

    @property
    def is_plain(self) -> bool:
        """Every tensor is scaled, to the target's own integers."""
        plain = not any(layer.weight for layer in self.plan.layers)
        return plain and set(self.activation_counts) <= {"scaled"}

    def on_own_grid(self, parameters: Mapping[str, QuantParameters]) -> dict[str, QuantParameters]:
        """Return the parameters of the sources whose grid is not cut to their range.

        A grid that an override makes symmetric reaches below 0 where the range does not.
        """
        families = self.settings.activation_families
        return {
            name: item
            for name, item in parameters.items()
            if not isinstance(family := families[name], ScaledActivations) or family.symmetric
        }


def place(
    model: ir.Model,
    target_plan: Plan,
    target: Target,
    recipe: TensorRecipe,
    calibration: Calibration | None = None,
    *,
    faster: Mapping[str, str] | None = None,
    may_be_empty: bool = False,
) -> Placement:
    """Return what is quantized and by which quantizers.

    Args:
        model: the float model.
        target_plan: what the target would quantize, had it the say in everything.
        target: the target whose rules made that plan.
        recipe: what is asked for.
        calibration: the statistics, if there are any; with them, joins of unlike ranges stay float, and so
            does what was never run.
        faster: layers that are faster in float, with the reason.
        may_be_empty: return the reasons alone where nothing can be quantized.

    Raises:
        NothingToQuantizeError: what is asked for leaves nothing to quantize.
        RecipeValueError: an override matches nothing, or a parameter is out of range.
        RecipeKeyError: an override gives a quantizer a parameter that it does not have.
        TargetOverrideError: the target cannot do what is asked.
    """
    unseen = never_seen(calibration) if calibration is not None else ()
    never_run = layers_never_run(model.graph, unseen)
    settings = tensor_settings(model, target_plan, target, recipe)
    planning = _Planning.of(model, target, settings, may_be_empty=may_be_empty or bool(faster))
    excluded = {
        **(faster or {}),
        **never_run,
        **without_kernels(model, target_plan, target, settings.other_formats(target)),
        **planning.unasked(settings, target_plan),
        **settings.excluded,
    }
    plan, excluded = _worth_it(planning, settings, target_plan, excluded, everything=recipe.all_layers)
    settings = settings.of(plan, target_plan)
    if calibration is not None:
        joins = _unlike(planning, plan, settings, calibration, excluded)
        plan = planning.plan(excluded, joins) if joins else plan
    settings = settings.of(plan, target_plan)
    plan = with_formats(model, plan, settings.activation_families, target)
    plan = with_tables(model, plan, settings, target)
    sites = _weight_sites(model, plan, settings, target)
    require_alike(plan, settings.weight_families, settings.activation_families, model)
    families = {new: _as_stored(settings.weight_families[site], new) for site, new in sites.items()}
    return Placement(
        plan=plan.with_weights(sites, _described(model, families, target)),
        target_plan=target_plan,
        settings=settings,
        families=families,
        quantizers={
            new: _quantizer(families[new], settings.weights[site], target, recipe.float_type)
            for site, new in sites.items()
        },
        opset=_oldest_opset(plan, families, target, recipe.float_type),
        float_type=recipe.float_type,
        never_run=never_run,
    )


@dataclass(frozen=True, kw_only=True)
class _Planning:
    """Plans a model again and again, with what its quantizers and the target demand each time.

    Attributes:
        model: the float model.
        target: whose rules hold.
        in_float: layers whose weights have quantizers without integer kernels, with the reason.
        looked_up: layers whose weights are looked up in centers.
        dynamic: layers whose activations become integers at each run, with what shares a scale of them.
        may_be_empty: a plan need not quantize anything.
    """

    model: ir.Model
    target: Target
    in_float: Mapping[str, str]
    looked_up: Collection[str]
    dynamic: Mapping[str, str]
    may_be_empty: bool

    @classmethod
    def of(
        cls, model: ir.Model, target: Target, settings: TensorSettings, *, may_be_empty: bool
    ) -> "_Planning":
        families, modes = settings.weight_families, settings.modes
        reasons = {name: ACTIVATIONS_IN_FLOAT for name, mode in modes.items() if mode == FLOAT}
        for site, family in families.items():
            if modes.get(site.node) != FLOAT:
                reasons[site.node] = _float_reason(family, target)
        return cls(
            model=model,
            target=target,
            in_float={node: reason for node, reason in reasons.items() if reason},
            looked_up={site.node for site, family in families.items() if isinstance(family, CenterWeights)},
            dynamic=settings.dynamic,
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
        return make_plan(
            self.model,
            self.target,
            self.in_float,
            excluded,
            self.looked_up,
            unjoined=unjoined,
            dynamic=self.dynamic,
            may_be_empty=self.may_be_empty or empty,
        )


def _worth_it(
    planning: _Planning,
    settings: TensorSettings,
    target_plan: Plan,
    excluded: dict[str, str],
    *,
    everything: bool,
) -> tuple[Plan, dict[str, str]]:
    """Return the plan without layers that are not worth their pairs, and all that it leaves out."""
    changed = planning.in_float or planning.dynamic or excluded
    plan = planning.plan(excluded) if changed else target_plan
    if everything:
        return plan, excluded
    found = worthless_layers(
        planning.model,
        plan,
        planning.target,
        settings.included,
        lambda more: planning.plan({**excluded, **more}, empty=True),
    )
    excluded = {**excluded, **found}
    return planning.plan(excluded) if found else plan, excluded


def _unlike(
    planning: _Planning,
    plan: Plan,
    settings: TensorSettings,
    calibration: Calibration,
    excluded: Mapping[str, str],
) -> dict[str, str]:
    """Return the joins of unlike ranges that are better left in float, with the reason."""
    model, target, families = planning.model, planning.target, settings.activation_families
    measured = MeasuredRanges(calibration=calibration, settings=settings.activations, families=families)
    formatted = with_formats(model, plan, families, target)
    return found_unlike(
        model, formatted, target, measured, settings.included, partial(planning.plan, excluded)
    )


def _weight_sites(
    model: ir.Model, plan: Plan, settings: TensorSettings, target: Target
) -> dict[WeightSite, WeightSite]:
    """Return the sites of a plan with the formats of their quantizers."""
    constants = model.graph.initializers
    ops = {node.name: node.op_type for node in model.graph.all_nodes()}
    found = {}
    for site in plan.weights:
        family = settings.weight_families[site]
        rule = block_rule(family, target, ops[site.node], settings.modes.get(site.node, STATIC))
        shape = _shape(constants[site.tensor])
        if rule is None or not isinstance(family, ScaledWeights):
            found[site] = weight_site(site, family, shape)
        else:
            found[site] = site_in_blocks(
                site, replace(family, bits=_bits(site, family, shape, target)), shape, rule.kernel
            )
    return found


def _bits(site: WeightSite, family: ScaledWeights, shape: tuple[int, ...], target: Target) -> int:
    """Return how many bits a weight gets: those that are asked for, if the kernel computes them correctly."""
    if site.block_axis is not None:
        return table_bits(family.bits, target)
    outputs = shape[site.axis] if site.axis is not None else 1
    return 4 if family.bits <= QUARTER_BYTE and outputs % OUTPUTS_OF_QUARTERS else family.bits


def _as_stored(family: WeightFamily, site: WeightSite) -> WeightFamily:
    """Return a family with the bits that its integers have where a kernel reads them in blocks."""
    if site.block_kernel and isinstance(family, ScaledWeights):
        return replace(family, bits=site.format.bits)
    return family


def _described(
    model: ir.Model, families: Mapping[WeightSite, WeightFamily], target: Target
) -> dict[str, str]:
    """Return the quantizers of weights that are not those of the target, in words."""
    ops = {node.name: node.op_type for node in model.graph.all_nodes()}
    return {
        site.node: describe_weights(item)
        for site, item in families.items()
        if item != ScaledWeights(bits=target.weight_rule(ops[site.node]).bits)
    }


def _quantizer(
    family: WeightFamily, settings: AmaxSettings, target: Target, float_type: str
) -> WeightQuantizer:
    made = weight_quantizer(family, settings, packed=target.weight.packed)
    return HalfScaleQuantizer(made) if float_type == FLOAT16 else made


def _oldest_opset(
    plan: Plan, families: Mapping[WeightSite, WeightFamily], target: Target, float_type: str
) -> int:
    packs = target.weight.packed and any(family.bits <= HALF_BYTE for family in families.values())
    blocks = any(site.block_size is not None for site in families)
    formats = [site.format for site in plan.activations.values()] + [site.format for site in families]
    wide = any(item.bits > BYTE for item in formats)
    known = [FLOAT_OPSETS[item.name] for item in formats if isinstance(item, FloatFormat)]
    # Scales of float16 came with opset 19, and with 21 for TensorRT.
    newer = PACKED_OPSET if packs or blocks or wide or float_type == FLOAT16 else 0
    quarters = any(site.block_kernel and site.format.bits <= QUARTER_BYTE for site in families)
    return max(target.opset, newer, QUARTER_BYTE_OPSET if quarters else 0, *known)


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(value.const_value.shape.numpy()) if value.const_value is not None else ()


def _float_reason(family: WeightFamily, target: Target) -> str:
    """Return why a layer with such a weight is computed in float, or an empty string if it is not."""
    if isinstance(family, CenterWeights):
        return f"its weight is looked up in {family.centers} centers, and there is no integer kernel for that"
    if isinstance(family, ScaledWeights) and family.block_size is not None:
        return (
            f"its weight is {family.bits} bits in blocks of {family.block_size}, which target {target.name} "
            "computes in float"
        )
    return ""
