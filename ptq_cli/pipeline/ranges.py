"""Which settings decide the range of which tensor, and what they decide."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import onnx_ir as ir

from ptq_cli.amax.decide import AUTO, Decision, decide
from ptq_cli.amax.grids import fixed_point_parameters, step_parameters
from ptq_cli.amax.overrides import matches, require_matches, settings_for
from ptq_cli.collectors.artifact import Calibration
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.arithmetic import ZERO_AMAX, QuantParameters
from ptq_cli.core.errors import NonFiniteActivationError, StaleCalibrationError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.pipeline.target_limits import require_bits, within_bits
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.rules import Target
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target import load_target
from ptq_cli.recipe.quantizers import (
    ActivationFamily,
    FixedPointActivations,
    ScaledActivations,
    StepActivations,
    WeightFamily,
    activation_family,
    overridden,
    weight_family,
)
from ptq_cli.recipe.schema import AmaxSettings, Recipe

Names = tuple[str, ...]


@dataclass(frozen=True)
class TensorSettings:
    """The amax settings of each tensor of a plan: the recipe's, with its overrides.

    Attributes:
        activations: by source, the tensor whose statistics decide.
        weights: by site.
        overridden: the tensors that an override changed the settings of, in the plan's order.
        activation_families: the quantizer of each source.
        weight_families: the quantizer of each weight.
    """

    activations: Mapping[str, AmaxSettings]
    weights: Mapping[WeightSite, AmaxSettings]
    overridden: Names
    activation_families: Mapping[str, ActivationFamily]
    weight_families: Mapping[WeightSite, WeightFamily]


def tensor_settings(model: ir.Model, plan: Plan, recipe: Recipe) -> TensorSettings:
    """Return the settings of each tensor.

    An override means an activation by its own name, by those of the tensors that share its parameters, and
    by the names of the layers that compute them; a weight by its own name and its layer's.

    Raises:
        RecipeValueError: an override matches nothing, or gives a quantizer a value out of its range.
        RecipeKeyError: an override gives a quantizer a parameter that it does not have.
        TargetOverrideError: the target has no such integers.
    """
    activations, weights = _activation_names(model, plan), _weight_names(plan)
    require_matches(recipe.override, list(activations.values()), list(weights.values()))

    def settle(names: Names) -> AmaxSettings:
        return settings_for(names, recipe.amax, recipe.override)

    of_activations = {source: settle(names) for source, names in activations.items()}
    of_weights = {site: settle(names) for site, names in weights.items()}
    changed = [source for source, found in of_activations.items() if _differ(found, recipe.amax, "method")]
    changed += [
        site.tensor for site, found in of_weights.items() if _differ(found, recipe.amax, "weight_method")
    ]
    activation_families = {source: _activation_family(item, recipe) for source, item in activations.items()}
    target, ops = load_target(recipe.quantization.target), {node.name: node.op_type for node in model.graph}
    weight_families = {
        site: _weight_family(item, recipe, target, ops[site.node]) for site, item in weights.items()
    }
    general = (
        activation_family(recipe.activations),
        weight_family(within_bits(recipe.weights, target.weight)),
    )
    changed += [source for source, found in activation_families.items() if found != general[0]]
    changed += [site.tensor for site, found in weight_families.items() if found != general[1]]
    names = tuple(dict.fromkeys(changed))
    return TensorSettings(of_activations, of_weights, names, activation_families, weight_families)


def _activation_family(names: Names, recipe: Recipe) -> ActivationFamily:
    settings = recipe.activations
    for item in recipe.override:
        if matches(item.match, names):
            settings = overridden(settings, item.activations)
    return activation_family(settings)


def _weight_family(names: Names, recipe: Recipe, target: Target, op_type: str) -> WeightFamily:
    settings, rule = recipe.weights, target.weight_rule(op_type)
    for item in recipe.override:
        if matches(item.match, names):
            settings = overridden(settings, item.weights)
    family = weight_family(within_bits(settings, rule))
    require_bits(family, rule, target.name, names[-1])
    return family


def check_matches(model: ir.Model, recipe: Recipe) -> None:
    """Raise if an override matches nothing: better to learn it before the calibration than after it.

    Raises:
        RecipeValueError: one does.
        NothingToQuantizeError: the model has nothing to quantize.
    """
    if recipe.override:
        tensor_settings(model, make_plan(model, load_target(recipe.quantization.target)), recipe)


def _differ(one: AmaxSettings, other: AmaxSettings, method: str) -> bool:
    """Tell whether two settings decide differently, where ``method`` names the field that counts."""
    if getattr(one, method) != getattr(other, method):
        return True
    return one.percentile != other.percentile and getattr(one, method) in (AUTO, "percentile")


def _activation_names(model: ir.Model, plan: Plan) -> dict[str, Names]:
    producers = {value.name: node.name or "" for node in model.graph for value in node.outputs}
    names: dict[str, dict[str, None]] = {}
    for site in plan.activations.values():
        for tensor in (site.source, site.tensor):
            known = names.setdefault(site.source, {})
            known |= dict.fromkeys(filter(None, (tensor, producers.get(tensor, ""))))
    return {source: tuple(known) for source, known in names.items()}


def _weight_names(plan: Plan) -> dict[WeightSite, Names]:
    return {site: (site.tensor, site.node) for site in plan.weights}


def decide_activations(
    plan: Plan,
    settings: Mapping[str, AmaxSettings],
    calibration: Calibration,
    families: Mapping[str, ActivationFamily] | None = None,
) -> dict[str, Decision]:
    """Return the decision for each tensor whose statistics decide, by its name.

    Args:
        plan: what is quantized.
        settings: by source.
        calibration: the statistics.
        families: the quantizer of each source; None for scaled ones.

    Raises:
        StaleCalibrationError: a tensor has no statistics.
        MissingStatisticError: a method needs statistics that were not kept.
    """
    decisions: dict[str, Decision] = {}
    for site in plan.activations.values():
        if site.source in decisions:
            continue
        statistics = statistics_of(plan, site.source, calibration)
        found = decide(statistics, settings[site.source], site.format, symmetric=site.symmetric)
        family = families[site.source] if families is not None else ScaledActivations()
        decisions[site.source] = replace(found, parameters=_on_grid(found, family, site.format))
    return decisions


def statistics_of(plan: Plan, source: str, calibration: Calibration) -> TensorStatistics:
    """Return what decides a source's parameters: its statistics, or the union of those that are tied to it.

    Raises:
        StaleCalibrationError: a tensor has no statistics.
    """
    members = plan.members(source)
    missing = next((name for name in members if name not in calibration.statistics), None)
    if missing is not None:
        raise StaleCalibrationError(
            f"the calibration has no statistics of '{missing}'", hint="run ptq calibrate again"
        )
    first, *others = (calibration.statistics[name] for name in members)
    if not others:
        return first
    # Channels of several tensors are not the same channels: their union has none.
    plain = [replace(item, channels=None) for item in (first, *others)]
    return reduce(TensorStatistics.merge, plain)


def _on_grid(decision: Decision, family: ActivationFamily, format: IntegerFormat) -> QuantParameters:
    match family:
        case FixedPointActivations():
            return fixed_point_parameters(decision.choice, format, family.integer)
        case StepActivations():
            return step_parameters(decision.choice, format, family.step)
        case ScaledActivations():
            return decision.parameters


def require_ranges(plan: Plan, calibration: Calibration) -> None:
    """Raise if a tensor that is quantized never had a finite value: nothing says what its range is.

    Raises:
        NonFiniteActivationError: there is one.
        StaleCalibrationError: a tensor has no statistics.
    """
    for source in plan.sources:
        if statistics_of(plan, source, calibration).rangeless:
            raise NonFiniteActivationError(
                f"tensor '{source}' had no finite value in any sample: there is no range to decide",
                hint="mend the float model, or calibrate on other samples; ptq explain shows the counts",
            )


def unsearched(decisions: Mapping[str, Decision]) -> dict[str, str]:
    """Return the tensors whose method had one candidate only, with the method.

    Edge case:
        A tensor that was always 0 has no range to choose; ``ptq calibrate`` has said so.
    """
    return {
        source: decision.method
        for source, decision in decisions.items()
        if decision.choice.candidates == 1 and decision.choice.amax > ZERO_AMAX
    }
