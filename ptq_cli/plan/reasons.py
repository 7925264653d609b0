"""What a user reads about each layer: that it is computed in integers, or why not."""

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import nested_graphs
from ptq_cli.plan.layers.requests import Requests
from ptq_cli.plan.questions.graph_questions import is_constant, parameter_size
from ptq_cli.plan.questions.joinable_axes import has_axes_to_join
from ptq_cli.plan.questions.masks import adds_mask
from ptq_cli.plan.questions.nested_layers import CONTAINS_LAYERS
from ptq_cli.plan.questions.refusals import attribute_refusal, clamp_refusal, integers_refusal, no_rule
from ptq_cli.plan.questions.sigmoid_gates import silu_input
from ptq_cli.plan.sites import LayerPlan
from ptq_cli.plan.target.rules import JOINED_AXES, QUICK_GELU, Target

ACTIVATIONS_IN_FLOAT = "its activations stay in float, as the recipe asks"
"""Begins the reason of a layer whose weights alone may be quantized."""


def layer_plan(node: ir.Node, requests: Requests) -> LayerPlan:
    """Return the plan of a node, with a reason if it is not computed in integers."""
    name = node.name or ""
    sizes = [parameter_size(value) for value in node.inputs if value is not None]
    dynamic = name in requests.dynamic
    quantized = dynamic or name in requests.integer
    reason = requests.reasons.get(name, "")
    if not quantized:
        reason = requests.rules.excluded.get(name, "") or reason or _float_reason(node, requests)
    target = requests.rules.target
    written_as = _integer_form(node, target) if quantized else _float_form(node, requests)
    return LayerPlan(
        name=name,
        op=node.op_type,
        quantized=quantized,
        reason=reason,
        parameters=sum(sizes),
        written_as=written_as,
        dynamic=dynamic,
    )


def _integer_form(node: ir.Node, target: Target) -> str:
    rule = target.op.get(node.op_type)
    return rule.integer_form if rule is not None else ""


def _float_form(node: ir.Node, requests: Requests) -> str:
    target, x = requests.rules.target, silu_input(node)
    if target.runtime_operators and x is not None and (x.name or "") in requests.asked:
        return QUICK_GELU
    rule = target.op.get(node.op_type)
    if rule is not None and rule.join_axes and has_axes_to_join(node):
        return JOINED_AXES
    if rule is None or not rule.float_form or any(is_constant(value) for value in node.inputs if value):
        return ""
    readers = node.outputs[0].uses()
    merged = any(use.idx == 0 and use.node.op_type in rule.float_form_before for use in readers)
    return rule.float_form if merged else ""


def _float_reason(node: ir.Node, requests: Requests) -> str:
    if adds_mask(node):
        return "attention mask: with its huge constant in the range, all scores would round to one value"
    if nested_graphs(node):
        return CONTAINS_LAYERS
    if reason := integers_refusal(node):
        return reason
    rule = requests.rules.of(node)
    if rule is None:
        return no_rule(node, requests.rules.target)
    if reason := attribute_refusal(node, rule):
        return reason
    by_kind = {"clamp": clamp_refusal(node) or "its result is not quantized", "apart": rule.note}
    return by_kind.get(
        rule.kind, "no integer operator reads it: in integers it would lose accuracy and not be faster"
    )
