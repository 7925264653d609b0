"""What the settings of each tensor decide: from statistics to parameters."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.decide import Decision, decide
from ptq_cli.amax.expected_error import signed_bins
from ptq_cli.amax.finish import ANY_SCALE, ScaleRules
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import ZERO_AMAX, QuantParameters, fake_quantize
from ptq_cli.core.errors import NonFiniteActivationError, StaleCalibrationError
from ptq_cli.models.graph_reading import every_node
from ptq_cli.placement.reader_bounds import Bounds
from ptq_cli.plan.sites import LayerPlan, Plan
from ptq_cli.plan.target.rules import CLAMPED_SUM
from ptq_cli.qdq.write.integer_forms import Values, clamped_sum, hard_swish
from ptq_cli.recipe.quantizer_families import ActivationFamily
from ptq_cli.recipe.sections import AmaxSettings

MOST_NAMES = 5
"""That an error lists."""


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
    """Return what decides a source's parameters: its statistics, or the union of those tied to it."""
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


# A tensor that only has another shape than a measured one needs no measurement.


VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose result has all the values of their first input, and no others."""


def with_moved_statistics(calibration: Calibration, graph: ir.Graph) -> Calibration:
    """Return a calibration that also has the statistics of tensors with the same values as a measured one.

    What is excluded moves the place where a tensor is quantized behind a Reshape or before it, and the
    calibration measured the other side. Statistics of channels are not carried over: the axis may be another
    one.
    """
    statistics = dict(calibration.statistics)
    pairs = [
        (node.inputs[0].name or "", node.outputs[0].name or "")
        for node in graph
        if node.op_type in VIEWS and node.domain == "" and node.inputs and node.inputs[0] is not None
    ]
    steps = [*pairs, *((result, source) for source, result in reversed(pairs))]
    for known, other in steps:
        if known in statistics and other not in statistics:
            statistics[other] = replace(statistics[known], channels=None)
    return (
        calibration
        if len(statistics) == len(calibration.statistics)
        else replace(calibration, statistics=statistics)
    )


PARTS = frozenset({"Gather", "MaxPool", "Slice", "Split"})
"""Operators whose results have no other values than their first input."""


def with_statistics_of_parts(calibration: Calibration, plan: Plan, graph: ir.Graph) -> Calibration:
    """Return a calibration with the statistics of the whole for tensors of a plan that are parts of it.

    Where a layer in float cuts a tensor, the calibration measured it before the cut alone; the range of the
    whole holds the part's.
    """
    statistics = dict(calibration.statistics)
    missing = set(plan.measured) - set(statistics)
    for node in graph if missing else ():
        whole = (
            node.inputs[0].name if node.op_type in PARTS and node.domain == "" and node.inputs[0] else None
        )
        if whole in statistics:
            own = replace(statistics[whole], channels=None)
            statistics |= {value.name: own for value in node.outputs if value.name in missing}
    return replace(calibration, statistics=statistics) if missing else calibration


# An operator stays float between integers where its integer form would add too much noise to its result.
#
# A HardSwish in integers rounds its gate besides its input and its result. That is nearly free where x
# spreads around 0; where all of x lies in a small part of its grid, the gate has few steps for it. The
# statistics say where, so what the form costs is known before anything is written.


MOST_NOISE = 1.0
"""dB that an integer form may add to the noise of an operator's result."""
POINTS = 1024
"""Between the smallest and the largest value, where no histogram says how they are spread."""


def without_noisy_forms(
    model: ir.Model, plan: Plan, grids: Mapping[str, QuantParameters], calibration: Calibration
) -> Plan:
    """Return the plan with those operators in float, between their pairs, whose integer form adds noise."""
    nodes = {node.name or "": node for node in every_node(model.graph)}
    return replace(
        plan,
        layers=tuple(
            _in_float(layer, _noise(nodes[layer.name], plan, grids, calibration))
            if layer.quantized and layer.written_as == CLAMPED_SUM
            else layer
            for layer in plan.layers
        ),
    )


def _in_float(layer: LayerPlan, noise: float) -> LayerPlan:
    if noise <= MOST_NOISE:
        return layer
    reason = f"its integer form would add {noise:.1f} dB of noise, more than {MOST_NOISE:g} dB"
    return replace(layer, quantized=False, between_pairs=True, written_as="", reason=reason)


def _noise(
    node: ir.Node, plan: Plan, grids: Mapping[str, QuantParameters], calibration: Calibration
) -> float:
    result = node.outputs[0]
    while result.name not in plan.activations:  # a Relu or Clip behind it was folded into the result's range
        result = next(iter(result.uses())).node.outputs[0]
    edges = [value.name or "" for value in (node.inputs[0], result) if value is not None]
    before, after = (plan.activations[name].source for name in edges)
    return added_noise(calibration.statistics[before], grids[before], grids[after])


def added_noise(statistics: TensorStatistics, before: QuantParameters, after: QuantParameters) -> float:
    """Return how much more noise the result of a HardSwish has in integers than in float between its pairs.

    Units:
        decibels.

    Edge case:
        Infinite where only the integer form has noise. Without a histogram the values are taken to be spread
        evenly from the smallest to the largest.
    """
    x, counts = _values(statistics)
    exact, rounded = hard_swish(x), fake_quantize(x, before).astype(np.float64)
    floating, integer = (
        float(np.sum(counts * (fake_quantize(found, after) - exact) ** 2))
        for found in (hard_swish(rounded), clamped_sum(rounded, before))
    )
    if integer <= floating:
        return 0.0
    return 10.0 * math.log10(integer / floating) if floating else math.inf


def _values(statistics: TensorStatistics) -> tuple[Values, Values]:
    if statistics.histogram is None:
        return np.linspace(statistics.low, statistics.high, POINTS), np.ones(POINTS)
    bins = signed_bins(statistics, statistics.histogram)
    return (bins.low + bins.high) / 2, bins.counts.astype(np.float64)
