"""A MatMul whose first operand is a constant matrix, or a batch of them, becomes one whose second operand is.

Requires: float32, the other operand has two axes or more. Ensures: ``W x`` is ``(xᵀ Wᵀ)ᵀ``, with the
constant where runtimes look for a weight, with a scale for each of its output channels. The transposes are
of values that are quantized where they can be; one that undoes another goes.
"""

import math

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import FreshNames, input_at, rank_of
from ptq_cli.models.preparing.rewriting import (
    TOLERANCE,
    RewritePass,
    Terms,
    add_constant,
    array_of,
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


# ReduceMean over an image's height and width becomes GlobalAveragePool.
#
# Requires: float32 with four or five axes, of which all behind the channels are averaged, and no squares,
# whose mean is a variance. Ensures: GlobalAveragePool, with a Reshape where the axes go. PyTorch exports
# its pooling as a mean, and the mean has no integer kernel where the pooling has one: a network's last
# blocks, and every gate of squeeze-and-excitation, stayed float for it.


SQUARES = ("Mul", "Pow")


def pool_means(graph: ir.Graph, names: FreshNames) -> int:
    """Make a pooling of each ReduceMean that is one, and return how many."""
    count = 0
    for node in [item for item in graph if item.op_type == "ReduceMean" and item.domain == ""]:
        x = node.inputs[0]
        if x is None or not is_float32(x) or not _is_spatial(node, x) or _is_square(x):
            continue
        pooling = ir.Node("", "GlobalAveragePool", [x])
        if node.attributes.get_int("keepdims", 1):
            put_instead(pooling, node, names)
        else:
            pooled = put_before(node, pooling, names)
            shape = add_constant(graph, np.array([0, -1], np.int64), "pooled.shape", names)
            put_instead(ir.Node("", "Reshape", [pooled, shape]), node, names)
        count += 1
    return count


MEAN_POOL = RewritePass("mean_pool", "ReduceMean of an image into GlobalAveragePool", pool_means)


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


def divide_by_reciprocals(graph: ir.Graph, names: FreshNames) -> int:
    """Make a Div of each product with a reciprocal, and return how many."""
    count = 0
    for node in [item for item in graph if item.op_type == "Mul" and item.domain == ""]:
        found = _dividend_and_divisor(node, names)
        if found is not None:
            put_instead(ir.Node("", "Div", list(found)), node, names)
            count += 1
    return count


RECIPROCAL = RewritePass("reciprocal", "Mul by a reciprocal into Div", divide_by_reciprocals)


def _dividend_and_divisor(node: ir.Node, names: FreshNames) -> tuple[ir.Value, ir.Value] | None:
    for factor in reversed(node.inputs):
        inverse = made_by(factor, "Reciprocal", "Pow")
        other = operand_beside(node, factor) if factor is not None else None
        if inverse is None or other is None or array_of(other) is not None or not is_float32(other):
            continue
        base = inverse.inputs[0]
        power = -1.0 if inverse.op_type == "Reciprocal" else scalar_of(input_at(inverse, 1))
        if base is None or power not in (-1.0, -0.5):
            continue
        return other, base if power == -1.0 else put_before(node, ir.Node("", "Sqrt", [base]), names)
    return None


# HardSwish written out becomes HardSwish.
#
# Requires: opset 14, float32. Ensures: HardSwish for ``x * clip(x + 3, 0, 6) / 6`` in any order of its
# factors, and for ``x * HardSigmoid(x)`` with alpha 1/6 and beta 1/2. onnxscript's rules take two of these
# orders.
#
# Source:
#     Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2.


def fuse_hard_swish(graph: ir.Graph, names: FreshNames) -> int:
    """Fuse each HardSwish that is written out, and return how many."""
    clipped = fuse_activation(graph, names, "Clip", _clip, "HardSwish")
    return clipped + fuse_activation(graph, names, "HardSigmoid", _hard_sigmoid, "HardSwish")


HARD_SWISH = RewritePass("hard_swish", "x * clip(x + 3, 0, 6) / 6 into HardSwish", fuse_hard_swish, opset=14)


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


def fuse_gelu(graph: ir.Graph, names: FreshNames) -> int:
    """Fuse each GELU that is written out, and return how many."""
    exact = fuse_activation(graph, names, "Erf", _erf, "Gelu")
    return exact + fuse_activation(graph, names, "Tanh", _tanh, "Gelu", {"approximate": "tanh"})


GELU = RewritePass("gelu", "erf or tanh form into Gelu", fuse_gelu, opset=20)


def _erf(node: ir.Node, x: ir.Value) -> Terms | None:
    return WHOLE if is_formula(terms_of(node.inputs[0], x), ERF_ARGUMENT) else None


def _tanh(node: ir.Node, x: ir.Value) -> Terms | None:
    return WHOLE if is_formula(terms_of(node.inputs[0], x), TANH_ARGUMENT) else None


# ``x * sigmoid(x)`` becomes Swish, where the opset has it.
#
# Requires: opset 24, float32. Ensures: Swish with ``alpha`` 1. Below opset 24 the two operators stay: a
# newer opset for this alone would leave behind the runtimes that do not know it.
#
# Source:
#     Elfwing et al., "Sigmoid-weighted linear units", https://arxiv.org/abs/1702.03118.


def fuse_silu(graph: ir.Graph, names: FreshNames) -> int:
    """Fuse each SiLU that is written out, and return how many."""
    return fuse_activation(graph, names, "Sigmoid", _sigmoid, "Swish")


SILU = RewritePass("silu", "x * sigmoid(x) into Swish", fuse_silu, opset=24)


def _sigmoid(node: ir.Node, x: ir.Value) -> Terms | None:
    return {(1, 1): 1.0} if node.inputs[0] is x else None
