"""Whether so many samples could show a budget to be kept, even of a model that changes no answer."""

import math
from collections.abc import Sequence

from ptq_cli.core.errors import TuneError, UnreachableBudgetError
from ptq_cli.pipeline.tuning.budgets.budget_checks import LEVEL, quantile_of
from ptq_cli.pipeline.tuning.budgets.budget_gate import AGREEMENT
from ptq_cli.recipe.sections.evaluation_sections import GateSettings
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.gate.limits import absolute_limit
from ptq_cli.report.intervals.flips import Flips
from ptq_cli.report.intervals.score_interval import largest_drop
from ptq_cli.report.intervals.share_interval import smallest_share
from ptq_cli.report.metrics.metric_registry import is_label_metric
from ptq_cli.report.metrics.spec import split_output

FEWEST = 20
"""Samples to decide by. The intervals of fewer are too narrow."""


def require_reachable(gate: GateSettings, samples: int | None) -> None:
    """Refuse budgets that so few samples could not prove, even of a model that changes no answer.

    Args:
        gate: the budgets.
        samples: to decide by; None if that is not known.

    Raises:
        TuneError: there are too few samples for any budget.
        UnreachableBudgetError: a budget on shares of samples is too small for so many.

    Example:
        >>> require_reachable(GateSettings(max_drop={"top1": 0.02}), 256)
    """
    if samples is None:
        return
    if samples < FEWEST:
        raise TuneError(
            f"{samples} samples are set aside to decide by, and at least {FEWEST} are needed",
            hint="pass more data with --data or --samples, or a larger share with --set-aside",
        )
    square = quantile_of(LEVEL) ** 2
    least = square / (samples + square)
    for name, allowed in _shares(gate).items():
        if allowed < least:
            raise UnreachableBudgetError(
                f"{samples} samples are set aside, and even a model that changes no answer is only shown to "
                f"lose less than {100 * least:.2g} %: {name} cannot be promised to {100 * allowed:.2g} %",
                hint=f"set {needed(allowed):,} labeled samples aside, with --data, --samples or "
                f"--set-aside, or allow {100 * least:.2g} % or more"
                if allowed > 0
                else f"allow {100 * least:.2g} % or more",
            )


def _shares(gate: GateSettings) -> dict[str, float]:
    """Return the budgets on shares of samples; a percentage is of at most 1."""
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
    """Return how many samples without a changed answer show that a share is at most ``allowed``.

    Example:
        >>> needed(0.01), needed(0.005)
        (381, 765)
    """
    return math.ceil(quantile_of(level) ** 2 * (1 - allowed) / allowed)


def could_be_shown(
    gate: GateSettings, measurements: Sequence[Measurement], samples: int, level: float
) -> bool:
    """Tell whether so many samples could show the budgets to be kept by a model that changes no answer.

    Args:
        gate: the budgets.
        measurements: of a candidate; they tell which metrics are shares of samples.
        samples: to decide by.
        level: how likely the proof may be wrong.

    Edge case:
        A budget on another metric could always be shown: an equal model has no noise.
    """
    quantile, by_name = quantile_of(level), {item.name: item for item in measurements}
    for name, limit in gate.max_drop.items():
        item = by_name[name]
        least = largest_drop(Flips.counted(samples, 0, 0), quantile)
        if item.flips is not None and least > absolute_limit(limit, item.float_value or 0.0):
            return False
    for name, limit in gate.min.items():
        interval = by_name[name].quantized_interval
        is_share = interval is not None and interval.method == "wilson"
        if is_share and smallest_share(1.0, samples, quantile) < absolute_limit(limit, 1.0):
            return False
    return True
