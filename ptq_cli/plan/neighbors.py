"""Rules of a target for the operators of a graph, with the operators around them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at, rank_of, sole_reader
from ptq_cli.plan.graph_questions import (
    OWN_DOMAINS,
    constant_size,
    fits_below,
    has_fixed_shape,
    is_constant,
    is_part_of_silu,
    is_vector,
)
from ptq_cli.plan.refusals import clamp_refusal
from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, OpRule, Target

Reasons = Mapping[str, str]  # Reasons by the name of a layer or a tensor


@dataclass(frozen=True)
class Rules:
    """A target's rules for the nodes of a graph, of which the user keeps some in float, with the reason."""

    target: Target
    excluded: Reasons = field(default_factory=dict)

    def of(self, node: ir.Node | None) -> OpRule | None:
        """Return the rule for a node, or None if there is none; other domains have no rules.

        A layer that is kept in float must stay between float tensors if the runtime would compute it in
        integers between quantized ones; see also ``WeightRule.quantizes_floats``. A Relu or Clip is treated
        like the operator before it. What becomes an operator of the runtime's own has no rule: it is computed
        in float.
        """
        if node is None or node.domain not in OWN_DOMAINS:
            return None
        if self.target.runtime_operators and is_part_of_silu(node):
            return None
        rule = self.target.op.get(node.op_type)
        reason = self.excluded.get(node.name or "")
        if not reason or rule is None or rule.kind in ("apart", "clamp"):
            return rule
        weight = input_at(node, rule.weight)
        is_weighted = rule.kind == "compute" and weight is not None and is_constant(weight)
        return None if is_weighted or rule.kind == "stored" else OpRule(kind="apart", note=reason)

    def ruled(self, graph: ir.Graph, *kinds: str) -> Iterator[tuple[ir.Node, OpRule]]:
        """Yield the nodes, nested ones too, that have a rule, of one of these kinds if some are given."""
        for node in every_node(graph):
            rule = self.of(node)
            if rule is not None and (not kinds or rule.kind in kinds):
                yield node, rule


def rule_of(node: ir.Node | None, target: Target) -> OpRule | None:
    """Return the target's rule for a node, or None if it has none."""
    return Rules(target).of(node)


def clamp_behind(node: ir.Node, rules: Rules) -> ir.Node | None:
    """Return the Relu or Clip that is the only reader of a node's output, if it disappears into the node."""
    follower = sole_reader(node.outputs[0])
    rule = rules.of(follower)
    if follower is None or rule is None or rule.kind != "clamp" or clamp_refusal(follower):
        return None
    return follower


def is_clamped(node: ir.Node, rules: Rules) -> bool:
    """Tell whether the only reader of a node's output is a Relu or Clip whose result is read.

    ONNX Runtime treats it as a part of the node, even if the node's output is an output of the graph, and
    finds no integer kernel for the two if their result is read as floats.
    """
    uses = list(node.outputs[0].uses())
    rule = rules.of(uses[0].node) if len(uses) == 1 else None
    return rule is not None and rule.kind == "clamp" and bool(uses[0].node.outputs[0].uses())


def is_merged(node: ir.Node, rule: OpRule) -> bool:
    """Tell whether the target would merge a float node into the one that reads its output as floats."""
    follower = sole_reader(node.outputs[0])
    if follower is None or follower.op_type not in rule.merged_by or input_at(node, rule.bias) is not None:
        return False
    return rank_of(node.outputs[0]) in (None, 2)


def bias_add_behind(node: ir.Node, weight: WeightSite) -> tuple[ir.Node, int] | None:
    """Return the Add of a constant vector that alone reads a MatMul's output, and the vector's index."""
    add = sole_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or weight.axis is None:
        return None
    matrix = node.inputs[weight.input_index]
    channels = matrix.shape[weight.axis] if matrix is not None and matrix.shape is not None else None
    for index, other in enumerate(add.inputs):
        if other is None or not is_constant(other) or other.dtype != ir.DataType.FLOAT:
            continue
        # A bias with more axes than the product would add an axis to the result.
        if is_vector(other) and constant_size(other) == channels and fits_below(other, node.outputs[0]):
            return add, index
    return None


def merges_bias_add(node: ir.Node, rule: OpRule, target: Target) -> bool:
    """Tell whether a target computes a MatMul and the Add of its bias in one kernel, in integers.

    ONNX Runtime does if it can reshape the input to a matrix beforehand. Of other runtimes the table says so
    with ``output = "always"``; one that keeps biases in float adds them to a float result otherwise.
    """
    if rule.output == "always" and target.runtime != ONNXRUNTIME:
        return True
    source = node.inputs[0]
    is_matrix = source is not None and (rank_of(source) == 2 or has_fixed_shape(source))
    return is_matrix and target.bias.format != "float"


def input_fused_behind(join: ir.Node, rule: OpRule) -> ir.Value | None:
    """Return the input of a join that stays float because the join is merged into the operator that makes it.

    If there are several, the first: an operator takes one join, and a join goes into one operator.
    """
    for value in dict.fromkeys(join.inputs):
        producer = value.producer() if value is not None else None
        is_fused = producer is not None and producer.op_type in rule.fused_behind
        if producer is not None and is_fused and sole_reader(producer.outputs[0]) is join:
            return value
    return None


def moved_inputs(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """Return the inputs of an operator that its quantized output depends on, according to its rule."""
    indices = rule.activations or ([0] if rule.kind == "same" else range(len(node.inputs)))
    return [value for index in indices if (value := input_at(node, index)) is not None]


def moved_outputs(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """Return the outputs that hold an operator's moved values: the first, or all of a Split's."""
    outputs = [value for value in node.outputs if value.name]
    return outputs if rule.outputs == "all" else outputs[:1]


def moved_to(value: ir.Value, target: Target) -> Iterator[ir.Value]:
    """Yield a value and the values it was moved from.

    ONNX Runtime moves a DequantizeLinear down along with them, even past operators kept in float by a user.
    """
    current: ir.Value | None = value
    while current is not None:
        yield current
        producer = current.producer()
        rule = rule_of(producer, target)
        is_moved = producer is not None and rule is not None and rule.kind == "same"
        current = producer.inputs[0] if producer is not None and is_moved else None


def moved_from(value: ir.Value, target: Target) -> Iterator[ir.Value]:
    """Yield a value, the values that it is moved to, and those that a Relu or Clip makes from it.

    ONNX Runtime moves a QuantizeLinear up along with them, even past operators kept in float by a user.
    """
    waiting = [value]
    while waiting:
        current = waiting.pop()
        yield current
        for node, index in current.uses():
            rule = rule_of(node, target)
            if index == 0 and rule is not None and rule.kind in ("same", "clamp"):
                waiting.extend(moved_outputs(node, rule))
