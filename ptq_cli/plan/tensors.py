"""What the planner asks about single tensors and nodes of a graph."""

import onnx_ir as ir

from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target import OpRule, Target


def constant_size(value: ir.Value) -> int:
    """Return how many elements a constant has; 0 for a value that is computed or fed."""
    constant = value.const_value
    return int(constant.size) if constant is not None else 0


def float_refusal(value: ir.Value) -> str:
    """Return why an activation cannot be quantized, or an empty string."""
    if is_constant(value):
        return f"reads the constant '{value.name}', and a quantized constant costs accuracy for nothing"
    if value.dtype != ir.DataType.FLOAT:
        return f"'{value.name}' is {str(value.dtype).lower()}, not float"
    return ""


def attribute_refusal(node: ir.Node, rule: OpRule) -> str:
    """Return why a node's attributes rule out its integer kernel, or an empty string."""
    for name in rule.unit_attributes:
        value = node.attributes.get_float(name, 1.0)
        if value != 1.0:
            return f"{name} is {value:g}, the integer kernel needs 1"
    return ""


def weight_refusal(value: ir.Value, *, may_be_computed: bool) -> str:
    """Return why a weight cannot be stored as integers, or an empty string."""
    if not is_constant(value):
        return "" if may_be_computed else f"its weight '{value.name}' is computed at run time"
    if value.dtype != ir.DataType.FLOAT:
        return f"its weight '{value.name}' is {str(value.dtype).lower()}, not float"
    return ""


def bias_refusal(value: ir.Value) -> str:
    """Return why a bias cannot be stored as int32, or an empty string."""
    if not is_constant(value):
        return f"its bias '{value.name}' is computed at run time"
    if not is_vector(value):
        return f"its bias '{value.name}' is no vector over the output channels"
    return ""


def weight_axis(node: ir.Node, rule: OpRule, value: ir.Value) -> int | None:
    """Return the axis of a weight's output channels, or None where it has none.

    Edge case:
        A batch of matrices has no axis that is an output channel for all of them; a grouped ConvTranspose's
        axis 1 counts the channels of one group only. Both get one scale for the whole weight.
    """
    rank = len(value.shape) if value.shape is not None else 0
    if node.op_type == "MatMul" and rank != 2:
        return None
    if node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) != 1:
        return None
    if rule.transpose_attribute and node.attributes.get_int(rule.transpose_attribute, 0) == 1:
        return 1 - rule.weight_axis
    return rule.weight_axis


def is_constant(value: ir.Value) -> bool:
    """Tell whether a value is a constant."""
    return value.const_value is not None


def is_vector(value: ir.Value) -> bool:
    """Tell whether a value has one axis."""
    return value.shape is not None and len(value.shape) == 1


def input_at(node: ir.Node, index: int | None) -> ir.Value | None:
    """Return an input of a node, or None where it has no such input or it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def clamp_behind(node: ir.Node, target: Target) -> ir.Node | None:
    """Return the Relu or Clip that alone reads a node's output, if the target makes it disappear."""
    follower = only_reader(node)
    rule = target.op.get(follower.op_type) if follower is not None else None
    return follower if rule is not None and rule.kind == "clamp" else None


def bias_add_behind(node: ir.Node, weight: WeightSite) -> tuple[ir.Node, int] | None:
    """Return the Add of a constant vector that alone reads a MatMul's output, and the vector's index."""
    add = only_reader(node)
    if add is None or add.op_type != "Add" or weight.axis is None:
        return None
    for index in (0, 1):
        other = add.inputs[index]
        if other is None or not is_constant(other) or not is_vector(other):
            continue
        constant = node.inputs[weight.input_index]
        channels = (
            constant.shape[weight.axis] if constant is not None and constant.shape is not None else None
        )
        if constant_size(other) == channels and other.dtype == ir.DataType.FLOAT:
            return add, index
    return None


def only_reader(node: ir.Node) -> ir.Node | None:
    """Return the single node that reads a node's first output, if no other does and it is no graph output."""
    output = node.outputs[0]
    uses = list(output.uses())
    if len(uses) != 1 or output.is_graph_output():
        return None
    return uses[0].node
