"""Tables that rows are looked up in, as embeddings: stored in blocks if the runtime reads those."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import FLOAT4_E2M1
from ptq_cli.models.graph_reading import constant_shape, every_node, every_value, input_at
from ptq_cli.models.pair_operators import BLOCK, CLAMPS
from ptq_cli.plan.graph_questions import Rules, clamp_refusal, clip_bound
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import OpRule, Target

GATHER = "Gather"
MATRIX = 2
LEAST_ROWS = 8
"""A smaller table is not worth the operators."""


def table_sites(model: ir.Model, target: Target) -> Iterator[WeightSite]:
    """Yield a site for each Gather of rows from a constant float matrix, if the target reads such blocks."""
    rule = target.op.get(GATHER)
    if rule is None or rule.blocks is None:
        return
    for node in model.graph:
        table = node.inputs[0] if node.op_type == GATHER and node.domain == "" else None
        if table is None or node.attributes.get_int("axis", 0) != 0 or not _is_table(table):
            continue
        yield WeightSite(
            tensor=table.name or "",
            node=node.name or "",
            input_index=0,
            format=target.weight_rule(GATHER).integers,
            axis=0,
            block_axis=1,
        )


def _is_table(value: ir.Value) -> bool:
    constant = value.const_value
    if constant is None or constant.dtype != ir.DataType.FLOAT or value.is_graph_output():
        return False
    shape = constant.shape.numpy()
    return len(shape) == MATRIX and shape[0] >= LEAST_ROWS


def table_bits(bits: int, target: Target) -> int:
    """Return how many bits an element of a table takes where a layer's weight would have so many.

    GatherBlockQuantized reads 4 bits; operators of ONNX alone look up rows of bytes.
    """
    return 4 if bits <= 4 and target.runtime_operators else 8


# Which layers have no kernel for the number format that a recipe asks for.


CHANNELS_FIRST = ("Conv", "ConvTranspose")


def without_kernels(
    model: ir.Model, plan: Plan, target: Target, formats: Mapping[str, str]
) -> dict[str, str]:
    """Return the layers that a target has no kernel for in the format that is asked for, with the reason."""
    if not formats:
        return {}
    rules, found = Rules(target), {}
    for node in every_node(model.graph):
        rule = rules.of(node)
        if rule is None:
            continue
        edges = [value.name for value in (*node.inputs, *node.outputs) if value is not None and value.name]
        sources = [plan.activations[name].source for name in edges if name in plan.activations]
        asked = next((formats[source] for source in sources if source in formats), "")
        shape = constant_shape(input_at(node, rule.weight))
        if asked and (
            reason := kernel_refusal(node.op_type, rule, target, asked, shape)
            or _blocks_refusal(node, asked, shape)
        ):
            found[node.name or ""] = reason
    return found


def _blocks_refusal(node: ir.Node, format: str, shape: tuple[int, ...]) -> str:
    """Return why a product cannot have factors in blocks of 4-bit floats, or an empty string."""
    if format != FLOAT4_E2M1.name:
        return ""
    if len(shape) != MATRIX or bool(node.attributes.get_int("transA", 0)):
        return f"{format} is for products of an activation with a constant matrix"
    inputs = shape[node.attributes.get_int("transB", 0)]
    return f"it has {inputs} inputs, which blocks of {BLOCK} do not divide" if inputs % BLOCK else ""


def kernel_refusal(op_type: str, rule: OpRule, target: Target, format: str, shape: tuple[int, ...]) -> str:
    """Return why an operator has no kernel for a format, or ""; a computed weight has the shape ()."""
    if rule.formats and format not in rule.formats:
        return f"target {target.name} has no {format} {op_type}"
    fewest, largest = rule.fewest_channels.get(format, 0), rule.largest_filter.get(format, 0)
    has = f"target {target.name} has {format} kernels for"
    if min(shape[:2], default=fewest) < fewest:
        return f"{has} {fewest} channels or more, and its weight is {'x'.join(map(str, shape))}"
    size = 1
    for length in shape[2:]:
        size *= length
    if largest and op_type in CHANNELS_FIRST and size > largest:
        return f"{has} filters of up to {largest} values, and its weight is {'x'.join(map(str, shape))}"
    return ""


# A Relu or Clip that a grid does not make redundant is kept, behind the quantized operator before it.


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
