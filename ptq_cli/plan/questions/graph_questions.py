"""Questions of the planner about single tensors and nodes of a graph."""

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at, rank_of, sole_reader
from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.rules import OpRule


def constant_size(value: ir.Value) -> int:
    """Return how many elements a constant has; 0 for a value that is computed or an input."""
    constant = value.const_value
    return int(constant.size) if constant is not None else 0


def parameter_size(value: ir.Value) -> int:
    """Return how many parameters a constant holds: its elements if they are floats; a shape has none."""
    constant = value.const_value
    return int(constant.size) if constant is not None and constant.dtype.is_floating_point() else 0


def weight_axis(node: ir.Node, rule: OpRule, value: ir.Value) -> int | None:
    """Return the axis of a weight's output channels, or None if it has none.

    Edge case:
        A batch of matrices has no axis that is the output channel of all of them, and axis 1 of a grouped
        ConvTranspose counts the channels of only one group. Both get one scale for the whole weight.
    """
    if node.op_type == "MatMul" and rank_of(value) != 2:
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
    """Tell whether a value has one axis, not counting axes of size 1 before it."""
    return value.shape is not None and all(size == 1 for size in list(value.shape)[:-1])


def clip_bound(clip: ir.Node, index: int) -> float | None:
    """Return a constant bound of a Clip: the lower one is its input 1, the upper one 2; None without it."""
    value = input_at(clip, index)
    constant = value.const_value if value is not None else None
    return float(constant.numpy().item()) if constant is not None else None


def has_fixed_shape(value: ir.Value) -> bool:
    """Tell whether every size of a value is known before it is computed."""
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def bias_add_behind(node: ir.Node, weight: WeightSite) -> tuple[ir.Node, int] | None:
    """Return the Add of a constant vector that alone reads a MatMul's output, and the vector's index."""
    add = sole_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or weight.axis is None:
        return None
    matrix = node.inputs[weight.input_index]
    channels = matrix.shape[weight.axis] if matrix is not None and matrix.shape is not None else None
    for index in (0, 1):
        other = add.inputs[index]
        if other is None or not is_constant(other) or other.dtype != ir.DataType.FLOAT:
            continue
        # A bias with more axes than the product would add an axis to the result.
        if is_vector(other) and constant_size(other) == channels and fits_below(other, node.outputs[0]):
            return add, index
    return None


def fits_below(value: ir.Value, larger: ir.Value) -> bool:
    """Tell whether a value has no more axes than another."""
    axes, limit = rank_of(value), rank_of(larger)
    return axes is not None and (axes == 1 or (limit is not None and axes <= limit))
