"""The methods of amax that are tried for a tensor, and the ranges that they choose."""

from dataclasses import replace

from ptq_cli.amax.decide import decide, resolve_method
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import PtqError
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.placement.ranges import statistics_of
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.quantizer_families import ScaledActivations
from ptq_cli.recipe.sections import AmaxSettings

PERCENTILES = (99.999, 99.99, 99.9)
ALIKE = 0.03
"""Scales that differ by less are one candidate."""
Candidate = tuple[AmaxSettings, QuantParameters]


def range_candidates(
    plan: Plan, source: str, placement: Placement, calibration: Calibration
) -> list[Candidate]:
    """Return methods with what they choose, each choice once; the recipe's own comes first."""
    own = placement.settings.activations[source]
    if not isinstance(placement.settings.activation_families[source], ScaledActivations):
        return []
    site = next(item for item in plan.activations.values() if item.source == source)
    if site.fixed_grid is not None:
        return []
    statistics = statistics_of(plan, source, calibration)
    has_histogram = statistics.histogram is not None
    own = replace(own, method=resolve_method(own, has_histogram=has_histogram))
    tried = [own, replace(own, method="max")]
    if has_histogram:
        tried += [replace(own, method="percentile", percentile=share) for share in PERCENTILES]
        tried += [replace(own, method="mse"), replace(own, method="entropy")]
    found: list[Candidate] = []
    for item in tried:
        try:
            parameters = decide(statistics, item, site.format, symmetric=site.symmetric).parameters
        except PtqError:  # A method that cannot decide on these values is not a candidate.
            continue
        if not any(_alike(parameters, other) for _, other in found):
            found.append((item, parameters))
    return found


def _alike(one: QuantParameters, other: QuantParameters) -> bool:
    ratio = float(one.scale) / float(other.scale)
    steps = abs(int(one.zero_point) - int(other.zero_point))
    return 1 - ALIKE < ratio < 1 + ALIKE and steps <= ALIKE * (one.format.qmax - one.format.qmin)
