"""Layers whose activations become integers at each run: which can, and why the others cannot."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at, rank_of
from ptq_cli.plan.attention_masks import MASKED, carries_mask
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.left_layers import dequantized_refusal, requantized_refusal
from ptq_cli.plan.refusals import (
    angle_refusal,
    attribute_refusal,
    bias_refusal,
    float_refusal,
    weight_refusal,
)
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import OpRule, Target

TWO_ACTIVATIONS = (
    "both of its inputs are computed while the model runs: making integers of both at each run saves little "
    "time, and costs accuracy"
)


def dynamic_operators(target: Target) -> frozenset[str]:
    """Return the operators that a target computes with ranges that are found at each run."""
    return frozenset(name for name, rule in target.op.items() if rule.dynamic)


def slow_layers(model: ir.Model, target: Target) -> dict[str, str]:
    """Return the layers that are slower with ranges found at each run than in float, with the reason."""
    notes = {name: rule.dynamic_note for name, rule in target.op.items() if rule.dynamic_note}
    return {node.name or "": notes[node.op_type] for node in every_node(model.graph) if node.op_type in notes}


def dynamic_candidates(model: ir.Model, plan: Plan, target: Target) -> tuple[str, ...]:
    """Return the layers that could find ranges at each run and do not, in the order of the graph."""
    names = {layer.name for layer in plan.layers if layer.quantized and not layer.dynamic}
    return tuple(
        node.name or ""
        for node in every_node(model.graph)
        if node.name in names
        and (rule := target.op.get(node.op_type)) is not None
        and rule.kind == "compute"
        and not rule.dynamic_note
        and not dynamic_refusal(node, rule, target.name)
    )


def dynamic_refusal(node: ir.Node, rule: OpRule, target: str) -> str:
    """Return why the activations of a layer cannot become integers at each run, or an empty string."""
    return next(filter(None, _refusals(node, rule, target)), "")


def _refusals(node: ir.Node, rule: OpRule, target: str) -> Iterator[str]:
    if not rule.dynamic:
        yield f"target {target} has no integer {node.op_type} with ranges found at each run"
    yield attribute_refusal(node, rule)
    yield angle_refusal(node)
    yield requantized_refusal(node)
    source, weight = input_at(node, rule.activations[0]), input_at(node, rule.weight)
    if source is not None:
        yield dequantized_refusal(source) or float_refusal(source)
        yield MASKED if carries_mask(source) else ""
    if weight is None or not is_constant(weight):
        yield TWO_ACTIVATIONS
        return
    yield weight_refusal(weight, may_be_computed=False)
    if (rank_of(weight) or 0) < 2:
        yield f"its weight '{weight.name}' is not a matrix"
    if node.op_type == "Conv" and (bias := input_at(node, rule.bias)) is not None:
        yield bias_refusal(bias)
    if node.attributes.get_int("transA", 0) != 0:
        yield "transA is 1: its input would have to be transposed before it is quantized"
