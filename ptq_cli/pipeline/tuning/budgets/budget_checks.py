"""Budgets, and how far a candidate may be from them on samples that nobody has seen."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from ptq_cli.core.errors import GateError, TuneError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.recipe.sections.evaluation_sections import GateSettings
from ptq_cli.report.document.ladder import BudgetCheck
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.gate.limits import BUDGET_FLAG, absolute_limit
from ptq_cli.report.intervals.flips import Flips
from ptq_cli.report.intervals.interval import NORMAL_QUANTILE
from ptq_cli.report.intervals.score_interval import largest_drop
from ptq_cli.report.intervals.share_interval import smallest_share

LEVEL = 0.05
"""How likely a budget that is called kept may be exceeded: one minus 95 %."""


def quantile_of(level: float) -> float:
    """Return how many standard errors are exceeded with a probability of ``level``, on one side.

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
    """Return each budget with what was measured, and its one-sided bound.

    Args:
        gate: the budgets.
        measurements: of a candidate.
        samples: that were measured on.
        level: how likely a bound may be wrong.
        expected: as if so many samples had been like these; None for those that were measured.

    Edge case:
        A bootstrap's interval of 95 % is widened as a normal distribution would be.

    Raises:
        TuneError: a metric has no interval, so that nothing can be promised of it.
        GateError: a metric was not measured.
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
    """Refuse a budget on what this model and these data do not have.

    Raises:
        GateError: none was measured.

    Example:
        >>> require_measured("sqnr_db", ["sqnr_db", "cosine"])
    """
    if name not in measured:
        raise GateError(
            f"{BUDGET_FLAG} {name}: it was not measured{did_you_mean(name, list(measured))}",
            hint=f"set a budget on one of {', '.join(measured)}",
        )


def _largest_drop(item: Measurement, quantile: float, ratio: float) -> float:
    if item.flips is not None:
        flips = item.flips
        scaled = Flips.counted(*(round(n * ratio) for n in (flips.samples, flips.lost, flips.gained)))
        return largest_drop(scaled, quantile)
    if item.drop is None or item.drop_interval is None:
        raise _no_bound(item)
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

    Args:
        checks: of the best candidate, on the samples set aside.
        set_aside: how many these are.

    Example:
        >>> check = BudgetCheck(
        ...     metric="top1", unit="share", kind="max_drop", limit=0.01, value=0.004, bound=0.016
        ... )
        >>> print(*advice_for([check], 500))
        top1 keeps its budget on the 500 samples set aside, which are too few to show it: about 2,000 may do
    """
    lines = []
    for check in checks:
        if check.holds:
            continue
        if not check.kept:
            lines.append(
                f"{check.metric} misses its budget on the samples set aside: allow more, keep further layers "
                "in float with --exclude, or train the model with quantization"
            )
            continue
        gap = abs(check.limit - check.value)
        about = math.ceil(set_aside * ((check.bound - check.value) / gap) ** 2) if gap > 0 else 0
        more = f"about {about:,} may do" if about else "no number would do"
        lines.append(
            f"{check.metric} keeps its budget on the {set_aside:,} samples set aside, which are too few to "
            f"show it: {more}"
        )
    return tuple(lines)
