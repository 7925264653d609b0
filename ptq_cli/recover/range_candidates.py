"""The methods of amax that are tried for a tensor, and the ranges that they choose."""

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ptq_cli.amax.decide import decide, resolve_method
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import PtqError
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.placement.ranges import decide_activations, statistics_of
from ptq_cli.placement.reader_bounds import Bounds, reader_bounds
from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.quantizer_families import ScaledActivations
from ptq_cli.recipe.sections import AmaxSettings

PERCENTILES = (99.999, 99.99, 99.9)
BYTE = 8
ALIKE = 0.03
"""Scales that differ by less are one candidate."""
Candidate = tuple[AmaxSettings, QuantParameters]


@dataclass(frozen=True)
class Candidates:
    """What is tried for a tensor.

    Attributes:
        choices: methods with what they choose, each choice once; the recipe's own comes first.
        chosen_by: which of them each method came to, by ``method_of``.
    """

    choices: list[Candidate] = field(default_factory=list)
    chosen_by: dict[str, int] = field(default_factory=dict)

    @property
    def has_few_bits(self) -> bool:
        """Whether the tensor has fewer than 8 bits."""
        return any(parameters.format.bits < BYTE for _, parameters in self.choices)


def method_of(settings: AmaxSettings) -> str:
    """Return a method in a word or two.

    Example:
        >>> [method_of(AmaxSettings(method=name, percentile=99.9)) for name in ("max", "percentile")]
        ['max', 'percentile 99.9']
    """
    return f"percentile {settings.percentile:g}" if settings.method == "percentile" else settings.method


def range_candidates(plan: Plan, source: str, placement: Placement, calibration: Calibration) -> Candidates:
    """Return what is tried for a tensor; nothing for one whose range is not chosen from its values."""
    own = placement.settings.activations[source]
    if not isinstance(placement.settings.activation_families[source], ScaledActivations):
        return Candidates()
    site = next(item for item in plan.activations.values() if item.source == source)
    if site.fixed_grid is not None:
        return Candidates()
    statistics = statistics_of(plan, source, calibration)
    has_histogram = statistics.histogram is not None
    own = replace(own, method=resolve_method(own, has_histogram=has_histogram))
    tried = [own, replace(own, method="max")]
    if has_histogram and site.format.bits < BYTE:  # What holds most values wastes most of few steps.
        tried = [own, replace(own, method="mse")]
    elif has_histogram:
        tried += [replace(own, method="percentile", percentile=share) for share in PERCENTILES]
        tried += [replace(own, method=method) for method in ("mse", "entropy")]
    found = Candidates()
    for item in tried:
        try:
            parameters = decide(
                statistics, item, site.format, symmetric=site.symmetric, within=placement.within.get(source)
            ).parameters
        except PtqError:  # A method that cannot decide on these values is not a candidate.
            continue
        alike = (index for index, (_, other) in enumerate(found.choices) if _alike(parameters, other))
        index = next(alike, len(found.choices))
        if index == len(found.choices):
            found.choices.append((item, parameters))
        found.chosen_by.setdefault(method_of(item), index)
    return found


def grids_of(placement: Placement, calibration: Calibration) -> dict[str, QuantParameters]:
    """Return the parameters of each source of a placement, before kernels have moved their zero points."""
    settings = placement.settings
    decisions = decide_activations(
        placement.plan,
        settings.activations,
        calibration,
        settings.activation_families,
        within=placement.within,
    )
    return {source: decision.parameters for source, decision in decisions.items()}


def told_bounds(model: ir.Model, placement: Placement, calibration: Calibration) -> dict[str, Bounds]:
    """Return where the ranges of a placement could end, since no reader can tell what is beyond."""
    families, plan = placement.settings.activation_families, placement.plan
    grids = grids_of(placement, calibration)
    fixed = {site.source for site in plan.activations.values() if site.fixed_grid is not None}
    return {
        source: bounds
        for source, bounds in reader_bounds(model, plan, grids).items()
        if source not in fixed and isinstance(families[source], ScaledActivations)
    }


def _alike(one: QuantParameters, other: QuantParameters) -> bool:
    ratio = float(one.scale) / float(other.scale)
    steps = abs(int(one.zero_point) - int(other.zero_point))
    return 1 - ALIKE < ratio < 1 + ALIKE and steps <= ALIKE * (one.format.qmax - one.format.qmin)
