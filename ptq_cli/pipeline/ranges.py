"""Which settings decide the range of which tensor, and what they decide."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.amax.decide import AUTO, Decision, decide
from ptq_cli.amax.overrides import require_matches, settings_for
from ptq_cli.collectors.artifact import Calibration
from ptq_cli.core.arithmetic import ZERO_AMAX
from ptq_cli.core.errors import NonFiniteActivationError, StaleCalibrationError
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target import load_target
from ptq_cli.recipe.schema import AmaxSettings, Recipe

Names = tuple[str, ...]


@dataclass(frozen=True)
class TensorSettings:
    """The amax settings of each tensor of a plan: the recipe's, with its overrides.

    Attributes:
        activations: by source, the tensor whose statistics decide.
        weights: by site.
        overridden: the tensors that an override changed the settings of, in the plan's order.
    """

    activations: Mapping[str, AmaxSettings]
    weights: Mapping[WeightSite, AmaxSettings]
    overridden: Names


def tensor_settings(model: ir.Model, plan: Plan, recipe: Recipe) -> TensorSettings:
    """Return the settings of each tensor.

    An override means an activation by its own name, by those of the tensors that share its parameters, and
    by the names of the layers that compute them; a weight by its own name and its layer's.

    Raises:
        RecipeValueError: an override matches nothing.
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
    return TensorSettings(of_activations, of_weights, tuple(dict.fromkeys(changed)))


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
    plan: Plan, settings: Mapping[str, AmaxSettings], calibration: Calibration
) -> dict[str, Decision]:
    """Return the decision for each tensor whose statistics decide, by its name.

    Raises:
        StaleCalibrationError: a tensor has no statistics.
        MissingStatisticError: a method needs statistics that were not kept.
    """
    decisions: dict[str, Decision] = {}
    for site in plan.activations.values():
        if site.source in decisions:
            continue
        statistics = calibration.statistics.get(site.source)
        if statistics is None:
            raise StaleCalibrationError(
                f"the calibration has no statistics of '{site.source}'", hint="run ptq calibrate again"
            )
        decisions[site.source] = decide(
            statistics, settings[site.source], site.format, symmetric=site.symmetric
        )
    return decisions


def require_ranges(plan: Plan, calibration: Calibration) -> None:
    """Raise if a tensor that is quantized never had a finite value: nothing says what its range is.

    Raises:
        NonFiniteActivationError: there is one.
    """
    for source in plan.measured:
        statistics = calibration.statistics.get(source)
        if statistics is not None and statistics.rangeless:
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
