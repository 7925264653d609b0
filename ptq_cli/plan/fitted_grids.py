"""Plans and zero points fitted to the grids: Clips that stay, zero points that kernels need elsewhere."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.models.graph_reading import every_node, every_value, input_at
from ptq_cli.models.pair_operators import CLAMPS
from ptq_cli.plan.graph_questions import clip_bound
from ptq_cli.plan.refusals import clamp_refusal
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target

REASON = (
    "its bounds cut values that its quantized range includes, so it stays and computes on quantized values"
)


def expose_clamps(model: ir.Model, plan: Plan, grids: Mapping[str, QuantParameters]) -> Plan:
    """Return the plan with a site before each Relu or Clip that does not disappear into the grid after it.

    A range is cut to a Clip's bounds, so that the runtime drops the Clip. A grid of powers of two or of a
    given step may reach beyond them, and so does a symmetric one after a Relu. Then the Clip stays, and the
    operator before it, which is integer only with a quantized output, gets its own site with the same grid:
    the results of the Clip lie on that grid again.
    """
    producers = {value.name: node for node in every_node(model.graph) for value in node.outputs}
    layers = {layer.name: layer for layer in plan.layers}
    sites = dict(plan.activations)
    for site in plan.activations.values():
        clip = producers.get(site.tensor)
        if clip is None or clip.op_type not in CLAMPS or site.source not in grids:
            continue
        before = clip.inputs[0]
        if not layers[clip.name or ""].quantized or before is None or not _cuts(clip, grids[site.source]):
            continue
        name = before.name or ""
        sites[name] = replace(site, tensor=name)
        if not any(layers[reader.name or ""].quantized for reader, _ in clip.outputs[0].uses()):
            del sites[site.tensor]  # only float operators read the Clip's result
        layers[clip.name or ""] = replace(layers[clip.name or ""], quantized=False, reason=REASON)
    order = [value.name or "" for value in every_value(model.graph)]
    return replace(
        plan,
        activations={name: sites[name] for name in order if name in sites},
        layers=tuple(layers[layer.name] for layer in plan.layers),
    )


def fit_clamps(
    model: ir.Model, plan: Plan, parameters: Mapping[str, QuantParameters]
) -> dict[str, QuantParameters]:
    """Return the parameters with zero points that keep the grid after a Clip within its lower bound.

    Because the zero point is rounded, the grid may begin half a step below the bound. Then ONNX Runtime 1.31
    does not treat the Clip as redundant, and computes the operator before it in float. (For a Clip with an
    upper bound it requires less: that the bounds, rounded to the grid, are its ends.)
    """
    producers = {value.name: node for node in every_node(model.graph) for value in node.outputs}
    fitted = dict(parameters)
    for source, grid in parameters.items():
        clip = producers.get(source)
        if clip is None or clip.op_type != "Clip" or clamp_refusal(clip) or source in plan.unions:
            continue
        if plan.activations[source].symmetric:
            continue
        if clip_bound(clip, 2) is None and _cuts(clip, grid):
            fitted[source] = replace(grid, zero_point=np.asarray(int(grid.zero_point) - 1))
    return fitted


def raise_zero_points(
    model: ir.Model, plan: Plan, target: Target, parameters: Mapping[str, QuantParameters]
) -> dict[str, QuantParameters]:
    """Return the parameters without the zero points that a kernel of the target is wrong for.

    The grid moves by a step, and loses its largest value. One that a kernel without that fault reads, too,
    stays: on ARM OpenVINO has no integer Conv for other zero points.
    """
    weighted = {site.node for site in plan.weights}
    faulty: dict[str, bool] = {}
    for node in every_node(model.graph):
        rule = target.op.get(node.op_type)
        if rule is None or node.name not in weighted:
            continue
        for value in (input_at(node, index) for index in rule.activations):
            site = plan.activations.get(value.name or "") if value is not None else None
            if site is not None and not site.symmetric:
                faulty[site.source] = rule.zero_point_above and faulty.get(site.source, True)
    return dict(parameters) | {
        source: replace(grid, zero_point=grid.zero_point + 1)
        for source, grid in parameters.items()
        if faulty.get(source) and int(grid.zero_point) == grid.format.qmin
    }


def _cuts(clip: ir.Node, grid: QuantParameters) -> bool:
    ends = [(q - int(grid.zero_point)) * float(grid.scale) for q in (grid.format.qmin, grid.format.qmax)]
    low, high = (0.0, None) if clip.op_type == "Relu" else [clip_bound(clip, index) for index in (1, 2)]
    return (low is not None and ends[0] < low) or (high is not None and ends[1] > high)
