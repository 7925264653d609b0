"""A MatMul whose first operand is a constant matrix, or a batch of them, becomes one whose second operand is.

Requires: float32, the other operand has two axes or more. Ensures: ``W x`` is ``(xᵀ Wᵀ)ᵀ``, with the
constant where runtimes look for a weight, with a scale for each of its output channels. The transposes are
of values that are quantized where they can be; one that undoes another goes.
"""

import math

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import FreshNames, constant_shape, input_at, rank_of, register_constant
from ptq_cli.models.preparing.rewriting import (
    TOLERANCE,
    RewritePass,
    Terms,
    add_constant,
    array_of,
    each_node,
    fuse_activation,
    is_float32,
    is_formula,
    made_by,
    operand_beside,
    put_before,
    put_instead,
    scalar_of,
    terms_of,
)


def _turn_matmul(node: ir.Node, names: FreshNames) -> bool:
    weight, value = node.inputs
    array, rank = array_of(weight), rank_of(value)
    if array is None or array.ndim < 2 or array_of(value) is not None or rank is None or rank < 2:
        return False
    if weight is None or value is None or not (is_float32(weight) and is_float32(value)):
        return False
    turned = np.ascontiguousarray(array.swapaxes(-1, -2))
    weight = add_constant(node.graph, turned, weight.name or "weight", names)
    product = ir.Node("", "MatMul", [_turned(node, value, _swapped(rank), names), weight])
    result = put_before(node, product, names)
    put_instead(_transpose(result, _swapped(max(rank, array.ndim))), node, names)
    return True


MATMUL_LEFT = RewritePass(
    "matmul_left", "MatMul of a constant on the left into one on the right", each_node(_turn_matmul, "MatMul")
)


# Leading axes of size 1 of a MatMul's weight go.
#
# Requires: float32, the rank of the other operand is known. Ensures: the weight is a matrix, with a scale for
# each output channel, and what the weight's axes alone gave the result, an Unsqueeze gives it.


def _as_matrices(graph: ir.Graph, names: FreshNames) -> int:
    return sum(_as_matrix(graph, value, names) for value in list(graph.initializers.values()))


def _as_matrix(graph: ir.Graph, value: ir.Value, names: FreshNames) -> int:
    shape = constant_shape(value)
    if len(shape) <= MATRIX or set(shape[:-MATRIX]) != {1} or value.is_graph_input() or not is_float32(value):
        return 0
    readers = [use.node for use in value.uses() if use.idx == 1 and use.node.op_type == "MatMul"]
    readers = [node for node in readers if node.domain == "" and (rank_of(node.inputs[0]) or 0) > 0]
    if not readers or value.const_value is None:
        return 0
    is_own = len(readers) == len(value.uses()) and not value.is_graph_output()
    name = (value.name or "") if is_own else names.claim(value.name or "weight")
    moved = moved_tensor(value.const_value, lambda array: array.reshape(array.shape[-MATRIX:]), name)
    if is_own:
        value.const_value, value.shape = moved, ir.Shape(shape[-MATRIX:])
    matrix = value if is_own else register_constant(graph, moved)
    for node in readers:
        rank = rank_of(node.inputs[0]) or 0
        lost = len(shape) - max(rank, MATRIX)
        if lost <= 0:
            node.replace_input_with(1, matrix)
            continue
        product = put_before(node, ir.Node("", "MatMul", [node.inputs[0], matrix]), names)
        axes = add_constant(graph, np.arange(lost, dtype=np.int64), "unit.axes", names)
        put_instead(ir.Node("", "Unsqueeze", [product, axes]), node, names)
    return len(readers)


MATRIX = 2
MATMUL_MATRIX = RewritePass(
    "matmul_matrix", "MatMul weight of shape [1, K, N] into a matrix", _as_matrices, opset=13
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


# ReduceMean over an image's height and width becomes GlobalAveragePool.
#
# Requires: float32 with four or five axes, of which all behind the channels are averaged, and no squares,
# whose mean is a variance. Ensures: GlobalAveragePool, with a Reshape where the axes go. PyTorch exports
# its pooling as a mean, and the mean has no integer kernel where the pooling has one: a network's last
# blocks, and every gate of squeeze-and-excitation, stayed float for it.


SQUARES = ("Mul", "Pow")


def _pool_mean(node: ir.Node, names: FreshNames) -> bool:
    x = node.inputs[0]
    if x is None or not is_float32(x) or not _is_spatial(node, x) or _is_square(x):
        return False
    pooling = ir.Node("", "GlobalAveragePool", [x])
    if node.attributes.get_int("keepdims", 1):
        put_instead(pooling, node, names)
    else:
        pooled = put_before(node, pooling, names)
        shape = add_constant(node.graph, np.array([0, -1], np.int64), "pooled.shape", names)
        put_instead(ir.Node("", "Reshape", [pooled, shape]), node, names)
    return True


MEAN_POOL = RewritePass(
    "mean_pool", "ReduceMean of an image into GlobalAveragePool", each_node(_pool_mean, "ReduceMean")
)


def _is_spatial(node: ir.Node, x: ir.Value) -> bool:
    rank = rank_of(x)
    given = array_of(input_at(node, 1))
    axes = given.tolist() if given is not None else list(node.attributes.get_ints("axes", ()))
    # Of three axes the last may as well be a token's features as a signal's time.
    return rank in (4, 5) and sorted(axis % rank for axis in axes) == list(range(2, rank))


def _is_square(x: ir.Value) -> bool:
    node = made_by(x, *SQUARES)
    return node is not None and (node.op_type == "Pow" or node.inputs[0] is node.inputs[1])


# A product with a reciprocal becomes the quotient that it is.
#
# Requires: float32; the reciprocal is a Reciprocal, or a Pow to -1 or -1/2. Ensures: Div, by the square
# root of what had the power of -1/2; equal to rounding. Normalizations that no single operator stands for
# are written so (RMS normalization, by the length, by the statistics of a batch), and targets multiply
# integers where they do not divide them: the reciprocal of a variance in 8 bits leaves nothing of what is
# small.


def _divide(node: ir.Node, names: FreshNames) -> bool:
    for factor in reversed(node.inputs):
        inverse = made_by(factor, "Reciprocal", "Pow")
        other = operand_beside(node, factor) if factor is not None else None
        if inverse is None or other is None or array_of(other) is not None or not is_float32(other):
            continue
        base = inverse.inputs[0]
        power = -1.0 if inverse.op_type == "Reciprocal" else scalar_of(input_at(inverse, 1))
        if base is None or power not in (-1.0, -0.5):
            continue
        divisor = base if power == -1.0 else put_before(node, ir.Node("", "Sqrt", [base]), names)
        put_instead(ir.Node("", "Div", [other, divisor]), node, names)
        return True
    return False


RECIPROCAL = RewritePass("reciprocal", "Mul by a reciprocal into Div", each_node(_divide, "Mul"))


# HardSwish written out becomes HardSwish.
#
# Requires: opset 14, float32. Ensures: HardSwish for ``x * clip(x + 3, 0, 6) / 6`` in any order of its
# factors, and for ``x * HardSigmoid(x)`` with alpha 1/6 and beta 1/2. onnxscript's rules take two of these
# orders.
#
# Source:
#     Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2.


def _clip(node: ir.Node, x: ir.Value) -> Terms | None:
    lowest, highest = scalar_of(input_at(node, 1)), scalar_of(input_at(node, 2))
    if lowest != 0.0 or highest is None or highest <= 0.0:
        return None
    # clip(a x + b, 0, c) = c clip(x / 6 + 1/2, 0, 1) where a = c / 6 and b = c / 2.
    argument = {(1, 0): highest / 6.0, (0, 0): highest / 2.0}
    return {(1, 1): 1.0 / highest} if is_formula(terms_of(node.inputs[0], x), argument) else None


def _hard_sigmoid(node: ir.Node, x: ir.Value) -> Terms | None:
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    fits = math.isclose(alpha, 1 / 6, rel_tol=TOLERANCE) and math.isclose(beta, 0.5, rel_tol=TOLERANCE)
    return {(1, 1): 1.0} if node.inputs[0] is x and fits else None


_CLIPPED = fuse_activation(_clip, "HardSwish", "Clip")
_SPELLED = fuse_activation(_hard_sigmoid, "HardSwish", "HardSigmoid")
HARD_SWISH = RewritePass(
    "hard_swish",
    "x * clip(x + 3, 0, 6) / 6 into HardSwish",
    lambda graph, names: _CLIPPED(graph, names) + _SPELLED(graph, names),
    opset=14,
)


# GELU written out, by erf or by tanh, becomes Gelu.
#
# Requires: opset 20, float32. Ensures: Gelu, exact or with ``approximate = "tanh"``, so that quantizers
# land on its edges and not inside it, where ``1 + erf(…)`` would be rounded to 256 levels.
#
# Source:
#     Hendrycks and Gimpel, "Gaussian Error Linear Units", https://arxiv.org/abs/1606.08415, section 2.


WHOLE = {(1, 0): 0.5, (1, 1): 0.5}
"""0.5 x (1 + t), with t = erf(x / sqrt(2)) or t = tanh(sqrt(2 / pi) (x + 0.044715 x³))."""
ERF_ARGUMENT = {(1, 0): math.sqrt(0.5)}
TANH_ARGUMENT = {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)}


def _gelu(node: ir.Node, x: ir.Value) -> Terms | None:
    argument = ERF_ARGUMENT if node.op_type == "Erf" else TANH_ARGUMENT
    return WHOLE if is_formula(terms_of(node.inputs[0], x), argument) else None


_EXACT, _BY_TANH = fuse_activation(_gelu, "Gelu", "Erf"), fuse_activation(_gelu, "Gelu", "Tanh")
GELU = RewritePass(
    "gelu",
    "erf or tanh form into Gelu",
    lambda graph, names: _EXACT(graph, names) + _BY_TANH(graph, names),
    opset=20,
)


# ``x * sigmoid(x)`` becomes Swish, where the opset has it.
#
# Requires: opset 24, float32. Ensures: Swish with ``alpha`` 1. Below opset 24 the two operators stay: a
# newer opset for this alone would leave behind the runtimes that do not know it.
#
# Source:
#     Elfwing et al., "Sigmoid-weighted linear units", https://arxiv.org/abs/1702.03118.


def _sigmoid(node: ir.Node, x: ir.Value) -> Terms | None:
    return {(1, 1): 1.0} if node.inputs[0] is x else None


SILU = RewritePass(
    "silu", "x * sigmoid(x) into Swish", fuse_activation(_sigmoid, "Swish", "Sigmoid"), opset=24
)
