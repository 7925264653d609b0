"""A MatMul whose first operand is a constant matrix, or a batch of them, becomes one whose second operand is.

Requires: float32, the other operand has two axes or more. Ensures: ``W x`` is ``(xᵀ Wᵀ)ᵀ``, with the
constant where runtimes look for a weight, with a scale for each of its output channels. The transposes are
of values that are quantized where they can be; one that undoes another goes.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import rank_of
from ptq_cli.models.preparing.rewriting.edit import add_constant, put_before, put_instead
from ptq_cli.models.preparing.rewriting.match import array_of, is_float32, made_by
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass


def turn_matmul(graph: ir.Graph, names: FreshNames) -> int:
    """Turn each MatMul whose constant is on the left, and return how many."""
    count = 0
    for node in [item for item in graph if item.op_type == "MatMul" and item.domain == ""]:
        weight, value = node.inputs
        array, rank = array_of(weight), rank_of(value)
        if array is None or array.ndim < 2 or array_of(value) is not None or rank is None or rank < 2:
            continue
        if weight is None or value is None or not (is_float32(weight) and is_float32(value)):
            continue
        turned = np.ascontiguousarray(array.swapaxes(-1, -2))
        weight = add_constant(graph, turned, weight.name or "weight", names)
        product = ir.Node("", "MatMul", [_turned(node, value, _swapped(rank), names), weight])
        result = put_before(node, product, names)
        put_instead(_transpose(result, _swapped(max(rank, array.ndim))), node, names)
        count += 1
    return count


MATMUL_LEFT = RewritePass(
    "matmul_left", "MatMul of a constant on the left into one on the right", turn_matmul
)


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _turned(node: ir.Node, value: ir.Value, order: list[int], names: FreshNames) -> ir.Value:
    before = made_by(value, "Transpose")
    source = before.inputs[0] if before is not None else None
    if before is None or source is None:
        return put_before(node, _transpose(value, order), names)
    known = list(before.attributes.get_ints("perm", tuple(reversed(range(len(order))))))
    perm = [known[axis] for axis in order]
    if perm == sorted(perm):
        return source
    return put_before(node, _transpose(source, perm), names)


def _transpose(value: ir.Value, order: list[int]) -> ir.Node:
    return ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", order)])
