"""Questions about single values and nodes: constants, axes, bounds, and parts of ``x * sigmoid(x)``."""

import onnx_ir as ir

from ptq_cli.models.graph_reading import constant_shape, input_at, rank_of, sole_reader
from ptq_cli.plan.target.rules import OpRule

OWN_DOMAINS = ("", "ai.onnx")
SIGNAL_RANK, VOLUME_RANK = 3, 5  # axes of a tensor, or a weight, with one and with three spatial axes


def is_constant(value: ir.Value) -> bool:
    """Tell whether a value is a constant."""
    return value.const_value is not None


def constant_size(value: ir.Value) -> int:
    """Return how many elements a constant has; 0 for a value that is computed or an input."""
    constant = value.const_value
    return int(constant.size) if constant is not None else 0


def parameter_size(value: ir.Value) -> int:
    """Return how many parameters a constant holds: its elements if they are floats; a shape has none."""
    constant = value.const_value
    return int(constant.size) if constant is not None and constant.dtype.is_floating_point() else 0


def is_vector(value: ir.Value) -> bool:
    """Tell whether a value has one axis, not counting axes of size 1 before it."""
    return value.shape is not None and all(size == 1 for size in list(value.shape)[:-1])


def has_fixed_shape(value: ir.Value) -> bool:
    """Tell whether every size of a value is known before it is computed."""
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def fits_below(value: ir.Value, larger: ir.Value) -> bool:
    """Tell whether a value has no more axes than another."""
    axes, limit = rank_of(value), rank_of(larger)
    return axes is not None and (axes == 1 or (limit is not None and axes <= limit))


def clip_bound(clip: ir.Node, index: int) -> float | None:
    """Return a constant bound of a Clip: the lower one is its input 1, the upper one 2; None without it."""
    value = input_at(clip, index)
    constant = value.const_value if value is not None else None
    return float(constant.numpy().item()) if constant is not None else None


def clamp_bounds(clamp: ir.Node) -> tuple[float | None, float | None]:
    """Return the constant bounds of a Relu or Clip; None for one that it does not have."""
    return (0.0, None) if clamp.op_type == "Relu" else (clip_bound(clamp, 1), clip_bound(clamp, 2))


def weight_axis(node: ir.Node, rule: OpRule, value: ir.Value) -> int | None:
    """Return the axis of a weight's output channels, or None if it has none.

    A batch of matrices has no axis that is the output channel of all of them: it gets one scale. So does a
    grouped ConvTranspose, whose axis 1 counts the channels of only one group, for an integer kernel. Computed
    in float, it has scales along axis 0 where each group reads one channel, and else along axis 1.
    """
    if node.op_type == "MatMul" and rank_of(value) != 2:
        return None
    groups = node.attributes.get_int("group", 1) if node.op_type == "ConvTranspose" else 1
    if groups != 1:
        depthwise = value.shape is not None and value.shape[0] == groups
        return None if rule.integer_kernel else 0 if depthwise else rule.weight_axis
    if rule.transpose_attribute and node.attributes.get_int(rule.transpose_attribute, 0) == 1:
        return 1 - rule.weight_axis
    return rule.weight_axis


def axis_of(node: ir.Node) -> int:
    """Return the axis of an operator whose input has a known rank, counted from 0."""
    rank = rank_of(node.inputs[0])
    if rank is None:
        raise ValueError(f"the rank of what '{node.name}' reads is not known")
    return node.attributes.get_int("axis", -1) % rank


def has_axes_to_join(node: ir.Node) -> bool:
    """Tell whether there are two or more axes behind that of an operator: a single one is joined already."""
    rank = rank_of(node.inputs[0])
    return rank is not None and rank > 0 and rank - 1 - axis_of(node) >= 2


def reduced_axes(node: ir.Node) -> list[int]:
    """Return the axes that a Reduce operator names, in an attribute or a constant."""
    constant = given.const_value if (given := input_at(node, 1)) is not None else None
    return list(constant.numpy() if constant is not None else node.attributes.get_ints("axes", ()))


def may_end_signal(node: ir.Node) -> bool:
    """Tell whether an operator reduces three axes to two by the last one, or may, for what is behind a Loop.

    There the number of axes is often not known.
    """
    if rank_of(node.inputs[0]) not in (SIGNAL_RANK, None):
        return False
    return node.op_type.startswith("Global") or reduced_axes(node) in ([-1], [SIGNAL_RANK - 1])


def ends_signal(node: ir.Node) -> bool:
    """Tell whether an operator is known to reduce three axes to two by the last one, as of a signal."""
    return rank_of(node.inputs[0]) == SIGNAL_RANK and may_end_signal(node)


def pads_groups_of_volumes(node: ir.Node) -> bool:
    """Tell whether a convolution of volumes has groups and padding, and not one filter a channel."""
    shape, group = constant_shape(input_at(node, 1)), node.attributes.get_int("group", 1)
    if group == 1 or len(shape) != VOLUME_RANK or shape[:2] == (group, 1):
        return False
    is_automatic = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    return is_automatic or any(node.attributes.get_ints("pads", ()))


def silu_input(node: ir.Node | None) -> ir.Value | None:
    """Return the x of a SiLU that ends with a node, or None if the node ends none.

    It is a Swish, which opset 24 has; or the Mul of x and Sigmoid(x), whose Sigmoid nothing else reads.
    """
    if node is None or node.domain not in OWN_DOMAINS or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    if node.op_type == "Swish":
        return node.inputs[0]
    gate = gate_of(node)
    return gate.inputs[0] if gate is not None else None


def gate_of(node: ir.Node) -> ir.Node | None:
    """Return the Sigmoid of a Mul of x and Sigmoid(x), or None if the node is another."""
    if node.op_type != "Mul" or node.domain not in OWN_DOMAINS:
        return None
    for value, x in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        gate = value.producer() if value is not None else None
        if gate is None or gate.op_type != "Sigmoid" or gate.domain not in OWN_DOMAINS:
            continue
        if gate.inputs[0] is x and value is not None and sole_reader(value) is node:
            return gate
    return None


def is_part_of_silu(node: ir.Node) -> bool:
    """Tell whether a node is a SiLU, or the Sigmoid inside of one."""
    if node.op_type == "Sigmoid":
        product = sole_reader(node.outputs[0])
        return product is not None and gate_of(product) is node and silu_input(product) is not None
    return node.op_type in ("Mul", "Swish") and silu_input(node) is not None
