"""Which quantizer goes where: the target's plan with the recipe's families; and a proof for fixed point."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import DYNAMIC_LSTM, KERNEL_PARAMETERS, dequantized_by
from ptq_cli.placement.planning import Planning, settled_plan
from ptq_cli.placement.ranges import ReaderBounds, never_seen
from ptq_cli.placement.target_limits import require_alike
from ptq_cli.placement.tensor_settings import TensorRecipe, TensorSettings, tensor_settings
from ptq_cli.placement.weight_families import (
    as_stored,
    described_weights,
    formatted_sites,
    oldest_opset,
    weight_quantizer,
)
from ptq_cli.plan.left_layers import layers_never_run, without_kernels
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.weighted_operators import with_pairs
from ptq_cli.qdq.read.stored_constants import product_of
from ptq_cli.qdq.write.weight_quantizer import WeightQuantizer
from ptq_cli.recipe.check import described
from ptq_cli.recipe.quantizer_families import ScaledActivations, WeightFamily
from ptq_cli.recipe.sections import FLOAT16, FLOAT32


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A plan whose weights have the formats of their quantizers.

    Attributes:
        target_plan: what the target would quantize, had it the say in everything.
        settings: of each tensor, for the plan that the target alone makes.
        families, quantizers: of each weight, by the plan's site.
        opset: the oldest that the target and its integers need.
        never_run: layers of nested graphs that the calibration never ran, with the reason; they stay float.
        float_type: of what is not quantized, and of all scales.
        within: by source, where its range ends at the latest.
    """

    plan: Plan
    target_plan: Plan
    settings: TensorSettings
    families: Mapping[WeightSite, WeightFamily]
    quantizers: Mapping[WeightSite, WeightQuantizer]
    opset: int
    never_run: Mapping[str, str] = field(default_factory=dict)
    float_type: str = FLOAT32
    within: Mapping[str, ReaderBounds] = field(default_factory=dict)

    @property
    def weight_counts(self) -> dict[str, int]:
        """How many weights are stored as what."""
        return dict(Counter(described(family) for family in self.families.values()))

    @property
    def activation_counts(self) -> dict[str, int]:
        """How many activations have which quantizer."""
        families = self.settings.activation_families
        return dict(Counter(described(families[source]) for source in self.plan.sources))

    @property
    def is_plain(self) -> bool:
        """Every tensor is scaled, to the target's own integers."""
        plain = not any(layer.weight for layer in self.plan.layers)
        return plain and set(self.activation_counts) <= {"scaled"}

    def with_ranges_of(self, other: "Placement") -> "Placement":
        """Return it with the methods and bounds of another placement, of the sources that both have."""
        own, given = self.settings.activations, other.settings.activations
        methods = {source: given.get(source, item) for source, item in own.items()}
        within = {source: ends for source, ends in other.within.items() if source in self.plan.sources}
        return replace(self, settings=replace(self.settings, activations=methods), within=within)

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
    may_be_empty: bool = False,
) -> Placement:
    """Return the plan of a model with the quantizer of each tensor.

    With a calibration, joins of unlike ranges stay float, and so does what was never run. ``may_be_empty``
    returns the reasons alone where nothing can be quantized.

    Raises: NothingToQuantizeError: what is asked for leaves nothing to quantize.
    """
    unseen = never_seen(calibration) if calibration is not None else ()
    # First, because the calibration has no ranges for these layers, whatever the recipe asks.
    never_run = layers_never_run(model.graph, unseen)
    settings = tensor_settings(model, target_plan, target, recipe)
    settings = replace(settings, dynamic={**settings.dynamic, **recipe.dynamic})
    planning = Planning.of(
        model,
        target_plan,
        target,
        settings,
        may_be_empty=may_be_empty or bool(recipe.faster or recipe.products),
    )
    excluded = {
        **recipe.faster,
        **never_run,
        **without_kernels(model, target_plan, target, settings.other_formats(target)),
        **planning.unasked(settings, target_plan),
        # Last, so that a layer that the recipe names is shown with the recipe's reason.
        **settings.excluded,
    }
    plan, settings = settled_plan(
        planning, settings, target_plan, excluded, calibration, everything=recipe.all_layers
    )
    sites = formatted_sites(model, plan, settings, target)
    # After the formats: which weights are added in 16 bits depends on their bits and on the activations'
    # format.
    sites = with_pairs(model.graph, plan, target, sites)
    require_alike(plan, settings.weight_families, settings.activation_families, model)
    families = {new: as_stored(settings.weight_families[site], new) for site, new in sites.items()}
    return Placement(
        plan=plan.with_weights(sites, described_weights(model, families, target)),
        target_plan=target_plan,
        settings=settings,
        families=families,
        quantizers={
            new: weight_quantizer(
                families[new],
                settings.weights[site],
                packed=target.weight.packed,
                half=recipe.float_type == FLOAT16,
            )
            for site, new in sites.items()
        },
        opset=oldest_opset(plan, families, target, recipe.float_type),
        float_type=recipe.float_type,
        never_run=never_run,
    )


def prove_powers_of_two(model: ir.Model, placement: Placement, plan: Plan) -> None:
    """Read the scale of each tensor in fixed point from the graph, and prove that it is a power of two.

    A bias has the product of the scales of its weight and of its input: a power of two where both are.
    """
    found = list(_scales(model, placement, plan))
    if not found:
        return
    import torch

    from ptq_cli.quantizers.fixed_point import require_power_of_two

    for tensor, scale in found:
        if scale is None or scale.const_value is None:
            raise RuntimeError(f"'{tensor}' is in fixed point, but has no scale in the quantized graph")
        try:
            require_power_of_two(torch.tensor(scale.const_value.numpy()))
        except QuantizerValueError as error:
            raise QuantizerValueError(f"'{tensor}': {error.message}", hint=error.hint) from error


def _scales(model: ir.Model, placement: Placement, plan: Plan) -> Iterator[tuple[str, ir.Value | None]]:
    families = placement.settings.activation_families
    nodes = {node.name: node for node in every_node(model.graph)}
    weights = {site for site, item in placement.families.items() if item.powers_of_two}
    fixed = {name for name, site in plan.activations.items() if families[site.source].powers_of_two}
    for site in weights:
        yield site.tensor, _scale_of(nodes[site.node], site.input_index)
    for bias in plan.biases:
        if bias.weight in weights and bias.activation in fixed:
            yield bias.tensor, _scale_of(nodes[bias.node], bias.input_index)
    for name in sorted(fixed):
        # The scale that was written, and not the one that was decided: the proof is on the exported
        # graph.
        yield name, next(iter(nodes[f"{name}/QuantizeLinear"].inputs[1:]), None)


def _scale_of(reader: ir.Node, index: int) -> ir.Value | None:
    if reader.op_type == DYNAMIC_LSTM:
        return reader.inputs[KERNEL_PARAMETERS[index]]
    value = reader.inputs[index]
    product = product_of(value.producer()) if value is not None else None
    if product is not None:
        return product.scale
    dequantize = dequantized_by(value)
    return dequantize.inputs[1] if dequantize is not None else None
