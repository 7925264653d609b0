"""Which quantizer goes where: the target's plan with the recipe's families of quantizers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.numbers.arithmetic import QuantParameters
from ptq_cli.pipeline.exporting.placing.planning import Planning, settled_plan
from ptq_cli.pipeline.exporting.placing.weight_sites import (
    as_stored,
    described_weights,
    formatted_sites,
    oldest_opset,
    stored_quantizer,
)
from ptq_cli.pipeline.exporting.ranges.tensor_ranges import never_seen
from ptq_cli.pipeline.exporting.settings.target_limits import require_alike
from ptq_cli.pipeline.exporting.settings.tensor_settings import TensorRecipe, TensorSettings, tensor_settings
from ptq_cli.plan.formats.kernel_formats import without_kernels
from ptq_cli.plan.questions.nested_layers import layers_never_run
from ptq_cli.plan.questions.pair_orders import with_pairs
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.write.weights.weight_quantizer import WeightQuantizer
from ptq_cli.recipe.quantizer_settings import ScaledActivations, WeightFamily
from ptq_cli.recipe.quantizer_words import describe_activations, describe_weights
from ptq_cli.recipe.sections.quantization_sections import FLOAT32


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
    planning = Planning.of(model, target, settings, may_be_empty=may_be_empty or bool(faster))
    excluded = {
        **(faster or {}),
        **never_run,
        **without_kernels(model, target_plan, target, settings.other_formats(target)),
        **planning.unasked(settings, target_plan),
        **settings.excluded,
    }
    plan, settings = settled_plan(
        planning, settings, target_plan, excluded, calibration, everything=recipe.all_layers
    )
    sites = formatted_sites(model, plan, settings, target)
    sites = with_pairs(model.graph, plan, target, sites)
    require_alike(plan, settings.weight_families, settings.activation_families, model)
    families = {new: as_stored(settings.weight_families[site], new) for site, new in sites.items()}
    return Placement(
        plan=plan.with_weights(sites, described_weights(model, families, target)),
        target_plan=target_plan,
        settings=settings,
        families=families,
        quantizers={
            new: stored_quantizer(families[new], settings.weights[site], target, recipe.float_type)
            for site, new in sites.items()
        },
        opset=oldest_opset(plan, families, target, recipe.float_type),
        float_type=recipe.float_type,
        never_run=never_run,
    )
