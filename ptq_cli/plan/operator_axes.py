"""Questions of the planner about the axes that an operator goes over: some kernels are wrong with some."""

import onnx_ir as ir

from ptq_cli.models.graph_reading import constant_shape, input_at, rank_of
from ptq_cli.models.pair_operators import CLAMPS
from ptq_cli.plan.target.rules import OpRule

MATRIX, SIGNAL_RANK, VOLUME_RANK = 2, 3, 5
"""Axes of a matrix; of a tensor, or a weight, with one and with three spatial axes."""


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


def reduced_axes(node: ir.Node) -> list[int]:
    """Return the axes that a Reduce operator names, in an attribute or a constant."""
    constant = given.const_value if (given := input_at(node, 1)) is not None else None
    return list(constant.numpy() if constant is not None else node.attributes.get_ints("axes", ()))


def pads_groups_of_volumes(node: ir.Node) -> bool:
    """Tell whether a convolution of volumes has groups and padding, and not one filter a channel."""
    shape, group = constant_shape(input_at(node, 1)), node.attributes.get_int("group", 1)
    if group == 1 or len(shape) != VOLUME_RANK or shape[:2] == (group, 1):
        return False
    is_automatic = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    return is_automatic or any(node.attributes.get_ints("pads", ()))


def reader_refusal(node: ir.Node, rule: OpRule) -> str:
    """Return which reader rules out an operator's integer kernel (``not_read_by``), or an empty string."""
    if not rule.not_read_by or not (_joins_inner_axis(node) or _has_several_matrices(node)):
        return ""
    readers = [use.node for use in node.outputs[0].uses()]
    behind = [use.node for reader in readers if reader.op_type in CLAMPS for use in reader.outputs[0].uses()]
    for reader in (*readers, *behind):
        if reader.op_type in rule.not_read_by:
            return f"{reader.op_type} '{reader.name}' reads it, which the runtime cannot load in integers"
    return ""


def _joins_inner_axis(node: ir.Node) -> bool:
    rank, axis = rank_of(node.outputs[0]), node.attributes.get_int("axis", -1)
    return node.op_type == "Concat" and (rank is None or axis % rank != rank - 1)


def _has_several_matrices(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and len(constant_shape(input_at(node, 1))) > MATRIX
