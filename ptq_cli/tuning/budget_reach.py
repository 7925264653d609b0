"""Budgets as limits, the bounds of what was measured, and whether so many samples could show them kept."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from ptq_cli.core.errors import GateError, TuneError, UnreachableBudgetError
from ptq_cli.core.words import did_you_mean
from ptq_cli.evaluation.document.ladder import BudgetCheck
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.interval import NORMAL_QUANTILE, Flips, largest_drop, smallest_share
from ptq_cli.evaluation.limits import (
    BUDGET_FLAG,
    absolute_limit,
    bounds_of,
    require_decisive,
    require_limit,
    require_output,
)
from ptq_cli.evaluation.metrics.metric_registry import (
    has_floor,
    is_comparison,
    is_label_metric,
    require_metric,
)
from ptq_cli.evaluation.metrics.spec import metric_specs, split_output
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import GateSettings, Limit

AGREEMENT = "top1_agreement"


def budget_gate(recipe: Recipe) -> GateSettings:
    """The budgets of a recipe as limits on drops, and minima of metrics that compare the models.

    Example:
        >>> from ptq_cli.recipe.sections import TuneSettings
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
    """The recipe of an evaluation that measures what the budgets are on, and nothing else."""
    # A budget on a comparison needs no labels, which the calibration data may not have.
    metrics = list(recipe.evaluation.metrics) if gate.max_drop else []
    evaluation = replace(recipe.evaluation, metrics=metrics, samples=None, generate=None)
    return replace(recipe, evaluation=evaluation, metric=recipe.metric if gate.max_drop else [], gate=gate)


def of_first_output(gate: GateSettings, first: str) -> GateSettings:
    """The budgets with comparisons of the first output under their names without brackets.

    Example:
        >>> of_first_output(GateSettings(min={"sqnr_db[a]": 30.0, "sqnr_db[b]": 20.0}), "a").min
        {'sqnr_db': 30.0, 'sqnr_db[b]': 20.0}
    """
    minima = {}
    for name, least in gate.min.items():
        metric, output = split_output(name)
        minima[metric if output == first else name] = least
    return replace(gate, min=minima)


LEVEL = 0.05  # how likely a budget that is called kept may be exceeded: one minus 95 %


def quantile_of(level: float) -> float:
    """How many standard errors are exceeded with a probability of ``level``, on one side.

    Example:
        >>> round(quantile_of(0.025), 2)
        1.96
    """
    return NormalDist().inv_cdf(1 - level)


def budget_checks(
    gate: GateSettings,
    measurements: Sequence[Measurement],
    samples: int,
    level: float,
    expected: int | None = None,
) -> tuple[BudgetCheck, ...]:
    """Each budget with what was measured, and its one-sided bound.

    ``level`` is how likely a bound may be wrong, and ``expected`` tells as if so many samples had been like
    these. A bootstrap's interval of 95 % is widened as a normal distribution would be.
    """
    by_name = {item.name: item for item in measurements}
    for name in (*gate.max_drop, *gate.min):
        require_measured(name, list(by_name))
    quantile, ratio = quantile_of(level), (expected or samples) / samples
    found = [
        BudgetCheck(
            metric=name,
            unit=by_name[name].unit,
            kind="max_drop",
            limit=absolute_limit(limit, by_name[name].float_value or 0.0),
            value=by_name[name].drop or 0.0,
            bound=_largest_drop(by_name[name], quantile, ratio),
        )
        for name, limit in gate.max_drop.items()
    ]
    found += [
        BudgetCheck(
            metric=name,
            unit=by_name[name].unit,
            kind="min",
            limit=absolute_limit(limit, 1.0),
            value=by_name[name].quantized_value,
            bound=_smallest_value(by_name[name], samples, quantile, ratio),
        )
        for name, limit in gate.min.items()
    ]
    return tuple(found)


def require_measured(name: str, measured: Sequence[str]) -> None:
    """Refuse a budget on what this model and these data do not have."""
    if name not in measured:
        raise GateError(
            f"{BUDGET_FLAG} {name}: it was not measured{did_you_mean(name, list(measured))}",
            hint=f"set a budget on one of {', '.join(measured)}",
        )


def _largest_drop(item: Measurement, quantile: float, ratio: float) -> float:
    if item.flips is not None:
        flips = item.flips
        # Of a count the bound has to be computed again, because it does not shrink with the root of the
        # number.
        scaled = Flips.counted(*(round(n * ratio) for n in (flips.samples, flips.lost, flips.gained)))
        return largest_drop(scaled, quantile)
    if item.drop is None or item.drop_interval is None:
        raise _no_bound(item)
    # From two sides at 95 % to one side at the level, and from these samples to those of the hold-out.
    return item.drop + (item.drop_interval.high - item.drop) * quantile / NORMAL_QUANTILE / math.sqrt(ratio)


def _smallest_value(item: Measurement, samples: int, quantile: float, ratio: float) -> float:
    value, interval = item.quantized_value, item.quantized_interval
    if math.isinf(value):
        return value
    if interval is None:
        raise _no_bound(item)
    if interval.method == "wilson":
        return smallest_share(value, round(samples * ratio), quantile)
    return value - (value - interval.low) * quantile / NORMAL_QUANTILE / math.sqrt(ratio)


def _no_bound(item: Measurement) -> TuneError:
    return TuneError(
        f"no budget on {item.name} can be promised: {item.no_interval or 'it has no interval'}",
        hint="set a budget on another metric, such as sqnr_db",
    )


def all_hold(checks: Sequence[BudgetCheck]) -> bool:
    """Tell whether every budget is within its bound."""
    return all(check.holds for check in checks)


def advice_for(checks: Sequence[BudgetCheck], set_aside: int) -> tuple[str, ...]:
    """Say what it would take for each budget that is not kept.

    Example:
        >>> check = BudgetCheck(
        ...     metric="top1", unit="share", kind="max_drop", limit=0.01, value=0.004, bound=0.016
        ... )
        >>> print(*advice_for([check], 500))
        top1 keeps its budget on the 500 held-out samples, which are too few to show it: about 2,000 may do
    """
    lines = []
    for check in checks:
        if check.holds:
            continue
        if not check.kept:
            lines.append(
                f"{check.metric} misses its budget on the held-out samples: allow a larger loss with "
                "--budget, or train the model with quantization"
            )
            continue
        gap = abs(check.limit - check.value)
        about = math.ceil(set_aside * ((check.bound - check.value) / gap) ** 2) if gap > 0 else 0
        more = f"about {about:,} may do" if about else "no number would do"
        lines.append(
            f"{check.metric} keeps its budget on the {set_aside:,} held-out samples, which are too few to "
            f"show it: {more}"
        )
    return tuple(lines)


FEWEST = 20  # samples to decide by. The intervals of fewer are too narrow


def require_reachable(gate: GateSettings, samples: int | None) -> None:
    """Refuse budgets that so few samples could not prove, even of a model that changes no answer."""
    if samples is None:
        return
    if samples < FEWEST:
        raise TuneError(
            f"only {samples} samples are held out, and at least {FEWEST} are needed",
            hint="pass more data with --data or --samples, or a larger --set calibration.set_aside=SHARE",
        )
    # The score bound of 0 of n: z² / (n + z²).
    square = quantile_of(LEVEL) ** 2
    least = square / (samples + square)
    for name, allowed in _shares(gate).items():
        if allowed < least:
            raise UnreachableBudgetError(
                f"{samples} held-out samples cannot prove a budget of {100 * allowed:.2g} % on {name}: "
                f"without a single changed answer they prove {100 * least:.2g} %",
                hint=f"hold out {needed(allowed):,} labeled samples with --data, --samples or "
                f"--set calibration.set_aside=SHARE, "
                f"or allow {100 * least:.2g} % or more"
                if allowed > 0
                else f"allow {100 * least:.2g} % or more",
            )


def _shares(gate: GateSettings) -> dict[str, float]:
    """The budgets on shares of samples; a percentage is of at most 1."""
    found = {
        name: absolute_limit(limit, 1.0)
        for name, limit in gate.max_drop.items()
        if name.startswith("top") and is_label_metric(split_output(name)[0])
    }
    agree = {
        name: 1.0 - absolute_limit(least, 1.0)
        for name, least in gate.min.items()
        if split_output(name)[0] == AGREEMENT
    }
    return found | agree


def needed(allowed: float, level: float = LEVEL / 2) -> int:
    """How many samples without a changed answer show that a share is at most ``allowed``.

    Example:
        >>> needed(0.01), needed(0.005)
        (381, 765)
    """
    return math.ceil(quantile_of(level) ** 2 * (1 - allowed) / allowed)


def could_be_shown(
    gate: GateSettings, measurements: Sequence[Measurement], samples: int, level: float
) -> bool:
    """Tell whether so many samples could show the budgets to be kept by a model that changes no answer.

    ``level`` is how likely the proof may be wrong; ``measurements`` tell which metrics are shares of samples.
    A budget on another metric could always be shown: an equal model has no noise.
    """
    quantile, by_name = quantile_of(level), {item.name: item for item in measurements}
    for name, limit in gate.max_drop.items():
        item = by_name[name]
        # Even a candidate without a single flip would not be shown to keep the budget.
        least = largest_drop(Flips.counted(samples, 0, 0), quantile)
        if item.flips is not None and least > absolute_limit(limit, item.float_value or 0.0):
            return False
    for name, limit in gate.min.items():
        interval = by_name[name].quantized_interval
        is_share = interval is not None and interval.method == "wilson"
        if is_share and smallest_share(1.0, samples, quantile) < absolute_limit(limit, 1.0):
            return False
    return True
