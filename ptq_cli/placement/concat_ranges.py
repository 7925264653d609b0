"""Keep a Concat near an output in float if the shared scale leaves an input fewer than 16 steps.

A Concat puts tensors side by side that may have nothing to do with each other: boxes in pixels and scores
between 0 and 1. In integers its result has one scale, and the largest part decides it. The statistics of each
part are known, so what the smallest loses is known before anything is quantized.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.amax.decide import decide
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.arithmetic import ZERO_AMAX
from ptq_cli.core.formats import FloatFormat
from ptq_cli.models.graph_reading import every_node
from ptq_cli.placement.ranges import union_of
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.neighbors import Rules, clamp_behind, moved_inputs, moved_to
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.quantizer_families import ActivationFamily, ScaledActivations
from ptq_cli.recipe.sections import AmaxSettings

FEWEST_STEPS = (
    16  # of a part's range in the join's scale: measured, docs/decisions/0009-layers-that-stay-float.md
)
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

    Raises:
        MissingStatisticError: a method needs statistics that were not kept.
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
