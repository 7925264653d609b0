"""What a target makes of an operator together with the one that reads it."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.plan.refusals import clamp_refusal
from ptq_cli.plan.target import OpRule, Target
from ptq_cli.plan.tensors import input_at, only_reader, rank


def rule_of(node: ir.Node | None, target: Target) -> OpRule | None:
    """Return the target's rule for a node, or None where it has none; other domains have no rules."""
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    return target.op.get(node.op_type)


def clamp_behind(node: ir.Node, target: Target) -> ir.Node | None:
    """Return the Relu or Clip that alone reads a node's output, if it disappears into the node."""
    follower = only_reader(node)
    rule = rule_of(follower, target)
    if follower is None or rule is None or rule.kind != "clamp" or clamp_refusal(follower):
        return None
    return follower


def is_merged(node: ir.Node, rule: OpRule) -> bool:
    """Tell whether the target would merge a node, in float, into the one that reads its output as floats."""
    follower = only_reader(node)
    return (
        follower is not None
        and follower.op_type in rule.merged_by
        and input_at(node, rule.bias) is None
        and rank(node.outputs[0]) in (None, 2)
    )


def is_clamped(node: ir.Node, target: Target) -> bool:
    """Tell whether a Relu or Clip that is read as well is the one operator that reads a node's output.

    ONNX Runtime takes it for a part of the node, also where the node's output is one of the graph's, and
    finds no integer kernel for the two if their result is read as floats.
    """
    uses = list(node.outputs[0].uses())
    rule = rule_of(uses[0].node, target) if len(uses) == 1 else None
    return rule is not None and rule.kind == "clamp" and bool(uses[0].node.outputs[0].uses())


def moved_to(value: ir.Value, target: Target) -> Iterator[ir.Value]:
    """Yield a value and those it was moved from; ONNX Runtime moves a DequantizeLinear down with them."""
    current: ir.Value | None = value
    while current is not None:
        yield current
        producer = current.producer()
        rule = rule_of(producer, target)
        current = (
            producer.inputs[0] if producer is not None and rule is not None and rule.kind == "same" else None
        )


def moved_from(value: ir.Value, target: Target) -> Iterator[ir.Value]:
    """Yield a value and those that it is moved to; ONNX Runtime moves a QuantizeLinear up with them."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        yield current
        for node, index in current.uses():
            rule = rule_of(node, target)
            if index == 0 and rule is not None and rule.kind == "same":
                waiting.append(node.outputs[0])
