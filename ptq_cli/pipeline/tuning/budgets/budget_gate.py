"""The budgets of a recipe become limits on drops, and minima of metrics that compare the models."""

from dataclasses import replace

from ptq_cli.core.errors import GateError, TuneError
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.evaluation_sections import GateSettings
from ptq_cli.recipe.sections.field_kinds import Limit
from ptq_cli.report.gate.limits import BUDGET_FLAG, bounds_of, require_decisive, require_limit, require_output
from ptq_cli.report.metrics.metric_registry import has_floor, is_comparison, require_metric
from ptq_cli.report.metrics.spec import metric_specs, split_output

AGREEMENT = "top1_agreement"


def budget_gate(recipe: Recipe) -> GateSettings:
    """Return the budgets of a recipe as limits on drops, and minima of metrics that compare the models.

    Raises:
        TuneError: there is no budget.
        UnknownNameError: no metric has that name.
        GateError: a budget is not a finite number, is negative, or is on an error that compares the models.

    Example:
        >>> from ptq_cli.recipe.sections.evaluation_sections import TuneSettings
        >>> gate = budget_gate(Recipe(tune=TuneSettings(budget={"top1": "1%", "sqnr_db": 30.0})))
        >>> gate.max_drop, gate.min
        ({'top1': '1%'}, {'sqnr_db': 30.0})
    """
    if not recipe.tune.budget:
        raise TuneError(
            "no budget was given",
            hint="say what may be lost: --budget top1=0.5%, or --budget sqnr_db=30 without labels",
        )
    own = {spec.name: spec.metric for spec in metric_specs(recipe.evaluation.metrics, recipe.metric)}
    drops: dict[str, Limit] = {}
    minima: dict[str, Limit] = {}
    for name, limit in recipe.tune.budget.items():
        require_limit(name, limit, BUDGET_FLAG)
        require_output(name, limit, BUDGET_FLAG, own)
        metric = split_output(name)[0]
        if name not in own:
            require_metric(metric, own)
        if is_comparison(metric) and not has_floor(metric):
            raise GateError(
                f"{BUDGET_FLAG} {name}={limit}: {metric} compares the two models and has no drop",
                hint=f"give its smallest value: {BUDGET_FLAG} sqnr_db=30, or {BUDGET_FLAG} {AGREEMENT}=0.98",
            )
        bounds = bounds_of(own.get(name, name))
        require_decisive(name, limit, BUDGET_FLAG, bounds, is_minimum=is_comparison(metric))
        if is_comparison(metric):
            minima[name] = limit
        else:
            drops[name] = limit
    return GateSettings(max_drop=drops, min=minima)


def decision_recipe(recipe: Recipe, gate: GateSettings) -> Recipe:
    """Return the recipe of an evaluation that measures what the budgets are on, and nothing else."""
    metrics = list(recipe.evaluation.metrics) if gate.max_drop else []
    evaluation = replace(recipe.evaluation, metrics=metrics, with_pytorch=False, samples=None)
    return replace(recipe, evaluation=evaluation, metric=recipe.metric if gate.max_drop else [], gate=gate)


def of_first_output(gate: GateSettings, first: str) -> GateSettings:
    """Return the budgets with comparisons of the first output under their names without brackets.

    Example:
        >>> of_first_output(GateSettings(min={"sqnr_db[a]": 30.0, "sqnr_db[b]": 20.0}), "a").min
        {'sqnr_db': 30.0, 'sqnr_db[b]': 20.0}
    """
    minima = {}
    for name, least in gate.min.items():
        metric, output = split_output(name)
        minima[metric if output == first else name] = least
    return replace(gate, min=minima)
