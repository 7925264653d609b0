"""Plans and zero points fitted to the grids: Clips that stay, zero points that kernels need elsewhere."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.models.graph_reading import every_node, every_value, input_at
from ptq_cli.models.pair_operators import CLAMPS
from ptq_cli.plan.graph_questions import clamp_bounds
from ptq_cli.plan.refusals import clamp_refusal
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target

KEPT_CLAMP = (
    "its bounds cut values that its quantized range includes, so it stays and computes on quantized values"
)


def expose_clamps(model: ir.Model, plan: Plan, grids: Mapping[str, QuantParameters]) -> Plan:
    """Return the plan with a site before each Relu or Clip that does not disappear into the grid after it.

    A range is cut to a Clip's bounds, so that the runtime drops the Clip. A grid of powers of two or of a
    given step may reach beyond them, and so does a symmetric one after a Relu. Then the Clip stays, and the
    operator before it, which is integer only with a quantized output, gets its own site with the same grid:
    the results of the Clip lie on that grid again.
    """
    layers = {layer.name: layer for layer in plan.layers}
    sites = dict(plan.activations)
    for name, clip in _producers(model, CLAMPS).items():
        site, before, layer = plan.activations.get(name), clip.inputs[0], layers[clip.name or ""]
        if site is None or before is None or site.source not in grids or not layer.quantized:
            continue
        if not _cuts(clip, grids[site.source]):
            continue
        sites[before.name or ""] = replace(site, tensor=before.name or "")
        if not any(layers[reader.name or ""].quantized for reader, _ in clip.outputs[0].uses()):
            del sites[site.tensor]  # only float operators read the Clip's result
        layers[layer.name] = replace(layer, quantized=False, reason=KEPT_CLAMP)
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
    fitted, clips = dict(parameters), _producers(model, ("Clip",))
    for source, grid in parameters.items():
        clip = clips.get(source)
        if clip is None or clamp_refusal(clip) or source in plan.unions or plan.activations[source].symmetric:
            continue
        if clamp_bounds(clip)[1] is None and _cuts(clip, grid):
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
        rule = target.op.get(node.op_type) if node.name in weighted else None
        for value in (input_at(node, index) for index in rule.activations) if rule is not None else ():
            site = plan.activations.get(value.name or "") if value is not None else None
            if rule is not None and site is not None and not site.symmetric:
                faulty[site.source] = rule.zero_point_above and faulty.get(site.source, True)
    return dict(parameters) | {
        source: replace(grid, zero_point=grid.zero_point + 1)
        for source, grid in parameters.items()
        if faulty.get(source) and int(grid.zero_point) == grid.format.qmin
    }


def _producers(model: ir.Model, op_types: tuple[str, ...]) -> dict[str, ir.Node]:
    """Return the operators of these types by the name of their result."""
    return {node.outputs[0].name or "": node for node in every_node(model.graph) if node.op_type in op_types}


def _cuts(clip: ir.Node, grid: QuantParameters) -> bool:
    ends = [(q - int(grid.zero_point)) * float(grid.scale) for q in (grid.format.qmin, grid.format.qmax)]
    low, high = clamp_bounds(clip)
    return (low is not None and ends[0] < low) or (high is not None and ends[1] > high)
