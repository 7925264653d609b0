"""Layers that a target has no kernel for in the number format that a recipe asks for."""

from collections.abc import Mapping
from math import prod

import onnx_ir as ir

from ptq_cli.core.formats import FLOAT4_E2M1
from ptq_cli.models.graph_reading import constant_shape, input_at
from ptq_cli.models.pair_operators import BLOCK
from ptq_cli.plan.neighbors import Rules
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import OpRule, Target


def without_kernels(
    model: ir.Model, plan: Plan, target: Target, formats: Mapping[str, str]
) -> dict[str, str]:
    """Return the layers without a kernel for the format asked for by source, with the reason."""
    found = {}
    for node, rule in Rules(target).ruled(model.graph) if formats else ():
        edges = [value.name for value in (*node.inputs, *node.outputs) if value is not None and value.name]
        sources = [plan.activations[name].source for name in edges if name in plan.activations]
        asked = next((formats[source] for source in sources if source in formats), "")
        shape = constant_shape(input_at(node, rule.weight))
        reason = kernel_refusal(node.op_type, rule, target, asked, shape) if asked else ""
        if reason := reason or _blocks_refusal(node, asked, shape):
            found[node.name or ""] = reason
    return found


def _blocks_refusal(node: ir.Node, format: str, shape: tuple[int, ...]) -> str:
    """Return why a product cannot have factors in blocks of 4-bit floats, or an empty string."""
    if format != FLOAT4_E2M1.name:
        return ""
    if len(shape) != 2 or bool(node.attributes.get_int("transA", 0)):
        return f"{format} is for products of an activation with a constant matrix"
    inputs = shape[node.attributes.get_int("transB", 0)]
    return f"it has {inputs} inputs, which blocks of {BLOCK} do not divide" if inputs % BLOCK else ""


def kernel_refusal(op_type: str, rule: OpRule, target: Target, format: str, shape: tuple[int, ...]) -> str:
    """Return why an operator has no kernel for a format, or ""; a computed weight has the shape ()."""
    if rule.formats and format not in rule.formats:
        return f"target {target.name} has no {format} {op_type}"
    fewest, largest = rule.fewest_channels.get(format, 0), rule.largest_filter.get(format, 0)
    has, text = f"target {target.name} has {format} kernels for", "x".join(map(str, shape))
    if min(shape[:2], default=fewest) < fewest:
        return f"{has} {fewest} channels or more, and its weight is {text}"
    if largest and op_type in ("Conv", "ConvTranspose") and prod(shape[2:]) > largest:
        return f"{has} filters of up to {largest} values, and its weight is {text}"
    return ""
