"""What the settings of each tensor decide: from statistics to parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

from ptq_cli.amax.decide import Decision, decide
from ptq_cli.amax.finish import ANY_SCALE, ScaleRules
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import ZERO_AMAX
from ptq_cli.core.errors import NonFiniteActivationError, StaleCalibrationError
from ptq_cli.placement.reader_bounds import Bounds
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.quantizer_families import ActivationFamily
from ptq_cli.recipe.sections import AmaxSettings

MOST_NAMES = 5  # that an error lists


def decide_activations(
    plan: Plan,
    settings: Mapping[str, AmaxSettings],
    calibration: Calibration,
    families: Mapping[str, ActivationFamily] | None = None,
    rules: ScaleRules = ANY_SCALE,
    within: Mapping[str, Bounds] = MappingProxyType({}),
) -> dict[str, Decision]:
    """Return the decision for each tensor whose statistics decide; without ``families`` all are scaled.

    ``within`` has the bounds of some sources, of scaled quantizers alone.

    Raises:
        MissingStatisticError: a method needs statistics that were not kept.
    """
    decisions: dict[str, Decision] = {}
    for site in plan.activations.values():
        if site.source in decisions:
            continue
        statistics = statistics_of(plan, site.source, calibration)
        decisions[site.source] = decide(
            statistics,
            settings[site.source],
            site.format,
            symmetric=site.symmetric,
            family=families[site.source] if families is not None else None,
            rules=replace(rules, fixed=site.fixed_grid),
            within=within.get(site.source),
        )
    return decisions


def statistics_of(plan: Plan, source: str, calibration: Calibration) -> TensorStatistics:
    """Statistics that decide a source's parameters: its own, or the union of those tied to it."""
    return union_of(plan.members(source), calibration)


def union_of(names: Iterable[str], calibration: Calibration) -> TensorStatistics:
    """Return the statistics of the values of all these tensors."""
    members = tuple(names)
    missing = next((name for name in members if name not in calibration.statistics), None)
    if missing is not None:
        raise StaleCalibrationError(
            f"the calibration has no statistics for '{missing}'", hint="run ptq calibrate again"
        )
    first, *others = (calibration.statistics[name] for name in members)
    if not others:
        return first
    # Channels of several tensors are not the same channels: their union has none.
    plain = [replace(item, channels=None) for item in (first, *others)]
    return reduce(TensorStatistics.merge, plain)


def require_ranges(plan: Plan, calibration: Calibration) -> None:
    """Raise if nothing says what the range of a tensor is that is quantized."""
    missing = [name for name in plan.measured if name not in calibration.statistics]
    if missing:
        shown = ", ".join(f"'{name}'" for name in missing[:MOST_NAMES])
        more = f" and {len(missing) - MOST_NAMES:,} more" if len(missing) > MOST_NAMES else ""
        hint = (
            f"run ptq calibrate again with --target {plan.target} and the same --exclude and --set override"
        )
        if not calibration.statistics:
            hint = "run ptq calibrate again with these settings: this calibration was for weights alone"
        raise StaleCalibrationError(
            f"target '{plan.target}' quantizes tensors that the calibration did not measure: {shown}{more}",
            hint=hint,
        )
    for source in plan.sources:
        if statistics_of(plan, source, calibration).rangeless:
            raise NonFiniteActivationError(
                f"tensor '{source}' had no finite value in any sample, so it has no range",
                hint="fix the float model, or calibrate on other samples; ptq inspect --tensor shows the "
                "counts",
            )


def never_seen(calibration: Calibration) -> tuple[str, ...]:
    """Return the tensors that had not a single value, such as those of a branch that was never taken."""
    return tuple(name for name, item in calibration.statistics.items() if item.unseen)


def unsearched(decisions: Mapping[str, Decision]) -> dict[str, str]:
    """Return the tensors whose method had only one candidate, with the method.

    A tensor that was always 0 has no range to choose; ``ptq calibrate`` has said so.
    """
    return {
        source: decision.method
        for source, decision in decisions.items()
        if decision.choice.candidates == 1 and decision.choice.amax > ZERO_AMAX
    }
