"""Operators that stay in float since integers would add too much noise: HardSwish, Concats near an output.

A Concat puts tensors side by side that may have nothing to do with each other: boxes in pixels and scores
between 0 and 1. In integers its result has one scale, and the largest part decides it. The statistics of each
part are known, so what the smallest loses is known before anything is quantized.

A HardSwish in integers rounds its gate besides its input and its result. That is nearly free where x
spreads around 0; where all of x lies in a small part of its grid, the gate has few steps for it. The
statistics say where, so what the form costs is known before anything is written.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.choice import signed_bins
from ptq_cli.amax.decide import decide
from ptq_cli.amax.entropy import natural_log
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import ZERO_AMAX, QuantParameters, fake_quantize
from ptq_cli.core.formats import FloatFormat
from ptq_cli.models.graph_reading import every_node
from ptq_cli.placement.ranges import union_of
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.refusals import Rules, clamp_behind, moved_inputs, moved_to
from ptq_cli.plan.sites import ActivationSite, LayerPlan, Plan
from ptq_cli.plan.target.rules import CLAMPED_SUM, Target
from ptq_cli.qdq.write.operator_forms import TableValues, clamped_sum, hard_swish
from ptq_cli.recipe.quantizer_families import ActivationFamily, ScaledActivations
from ptq_cli.recipe.sections import AmaxSettings

# Steps of a part's range in the scale of the join: measured, docs/decisions/0009-layers-that-stay-float.md.
FEWEST_STEPS = 16
LARGEST_SHARE = 0.05  # of integer multiply-accumulates that become float with a join that is near an output
SIDE_BY_SIDE = ("Concat",)  # operators whose result holds all values of their inputs


@dataclass(frozen=True)
class UnlikeJoin:
    """A join that leaves the range of a part fewer steps of its scale than it has with its own."""

    layer: str
    part: str
    steps: float
    own_steps: int

    @property
    def reason(self) -> str:
        """Why the join stays float."""
        steps = f"{self.steps:.0f}" if self.steps >= 1 else "less than 1"
        return f"a shared scale would leave '{self.part}' {steps} of its {self.own_steps} steps"


@dataclass(frozen=True, kw_only=True)
class MeasuredRanges:
    """The statistics of a model's tensors, and how the range of each source is decided."""

    calibration: Calibration
    settings: Mapping[str, AmaxSettings]
    families: Mapping[str, ActivationFamily]


def unlike_joins(
    model: ir.Model, plan: Plan, target: Target, measured: MeasuredRanges
) -> Iterator[UnlikeJoin]:
    """Yield the integer joins that leave a part fewer than ``FEWEST_STEPS`` steps, the last one first.

    A grid that the recipe sets is not questioned, and a part that was always 0 loses nothing.

    Raises: MissingStatisticError: a method needs statistics that were not kept.
    """
    rules = Rules(target)
    integer = {layer.name for layer in plan.layers if layer.quantized}
    for node in reversed(list(every_node(model.graph))):
        rule = rules.of(node)
        if rule is None or rule.kind != "join" or (node.name or "") not in integer:
            continue
        clamp = clamp_behind(node, rules)
        site = plan.activations.get((clamp or node).outputs[0].name or "")
        if site is None or not (rule.ties or node.op_type in SIDE_BY_SIDE):
            continue
        if not isinstance(measured.families[site.source], ScaledActivations):
            continue
        if isinstance(site.format, FloatFormat):
            continue  # Its steps are finer where the values are smaller.
        steps = dict(_steps(moved_inputs(node, rule), plan, target, measured, site))
        part = min(steps, key=steps.__getitem__, default="")
        if part and steps[part] < FEWEST_STEPS:
            yield UnlikeJoin(node.name or "", part, steps[part], _levels(site))


def float_concats(
    model: ir.Model,
    plan: Plan,
    target: Target,
    measured: MeasuredRanges,
    asked: Container[str],
    planned: Callable[[Mapping[str, str]], Plan],
) -> dict[str, str]:
    """Return the joins of unlike ranges that are better in float, with the reason; none that was asked for.

    Where a join is float, so is what reads it: a join amid the network stays, since its readers are the work.
    """
    found: dict[str, str] = {}
    for join in unlike_joins(model, plan, target, measured):
        if join.layer in asked:
            continue
        without = planned({**found, join.layer: join.reason})
        if _share_lost(model, plan, without) <= LARGEST_SHARE:
            found[join.layer] = join.reason
    return found


def _share_lost(model: ir.Model, plan: Plan, without: Plan) -> float:
    """Return the share of the integer multiply-accumulates of a plan that another computes in float.

    If it is not known how much one of those layers computes, all are lost.
    """
    work = multiply_accumulates(model).counts
    integer, kept = ({layer.name for layer in item.layers if layer.quantized} for item in (plan, without))
    lost = [work.get(name) for name in integer - kept]
    if any(count is None for count in lost):
        return 1.0
    return sum(filter(None, lost)) / max(1, sum(work.get(name) or 0 for name in integer))


def _steps(
    parts: Iterable[ir.Value], plan: Plan, target: Target, measured: MeasuredRanges, site: ActivationSite
) -> Iterator[tuple[str, float]]:
    """Yield how many steps of the join's scale the range of each part has."""

    def scale(names: Iterable[str], settings: AmaxSettings) -> float | None:
        found = decide(union_of(names, measured.calibration), settings, site.format, symmetric=site.symmetric)
        return float(found.parameters.scale) if found.choice.amax > ZERO_AMAX else None

    joint = scale(plan.members(site.source), measured.settings[site.source])
    for value in parts:
        # Values that are only moved have the statistics of where they come from.
        known = (item.name or "" for item in moved_to(value, target))
        name = next((item for item in known if item in measured.calibration.statistics), None)
        if name is None or joint is None:
            continue
        own = scale([name], measured.settings[plan.activations[name].source])
        if own is not None:
            yield value.name or "", _levels(site) * own / joint


def _levels(site: ActivationSite) -> int:
    return int(site.format.qmax - site.format.qmin)


MOST_NOISE = 1.0  # dB that an integer form may add to the noise of an operator's result
_POINTS = 1024  # between the smallest and the largest value, where no histogram says how they are spread


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
    """Return the noise that integers add to a HardSwish's result, beside float between its pairs.

    Units: decibels.
    Edge case: Infinite where only the integer form has noise. Without a histogram the values are taken to be
        spread evenly from the smallest to the largest.
    """
    x, counts = _values(statistics)
    exact, rounded = hard_swish(x), fake_quantize(x, before).astype(np.float64)
    floating, integer = (
        float(np.sum(counts * (fake_quantize(found, after) - exact) ** 2))
        for found in (hard_swish(rounded), clamped_sum(rounded, before))
    )
    if integer <= floating:
        return 0.0
    # A library's logarithm is not the same on every processor, and a file says this number.
    return 10.0 * natural_log(integer / floating) / natural_log(10.0) if floating else math.inf


def _values(statistics: TensorStatistics) -> tuple[TableValues, TableValues]:
    if statistics.histogram is None:
        return np.linspace(statistics.low, statistics.high, _POINTS), np.ones(_POINTS)
    bins = signed_bins(statistics, statistics.histogram)
    return (bins.low + bins.high) / 2, bins.counts.astype(np.float64)
