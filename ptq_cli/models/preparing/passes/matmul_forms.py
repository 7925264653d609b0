"""Products become a MatMul with a matrix of constants on its right, where runtimes look for a weight."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import FreshNames, constant_shape, rank_of, register_constant
from ptq_cli.models.preparing.rewriting import (
    RewritePass,
    add_constant,
    array_of,
    each_node,
    is_float32,
    made_by,
    put_before,
    put_instead,
)


@dataclass(frozen=True, kw_only=True)
class _Product:
    """The operands of an Einsum; labels of ``first`` and ``second`` are of four groups.

    Attributes:
        first, second: the operands; a constant one is the second.
        labels: of the two operands, and of the result.
        batch: in all three.
        left, right: in the first operand and the result, and in the second and the result.
        summed: in both operands alone.
    """

    first: ir.Value
    second: ir.Value
    labels: tuple[str, str, str]
    batch: str
    left: str
    right: str
    summed: str


def _fuse_einsum(node: ir.Node, names: FreshNames) -> bool:
    """Write an Einsum of two matrices as MatMul, with a Transpose where an axis lies elsewhere.

    Requires: two float32 operands of known rank, each axis named once, and what is summed is in both of them.
    Of several axes that are summed, or that one operand alone brings beside the other's, this operand is
    constant. There is an integer kernel for MatMul; onnxscript has no such rule.
    """
    product = _product(node)
    if product is None:
        return False
    _write(node, product, names)
    return True


EINSUM = RewritePass("einsum", "Einsum of two matrices into MatMul", each_node(_fuse_einsum, "Einsum"))


def _product(node: ir.Node) -> _Product | None:
    first, second = (*node.inputs, None, None)[:2]
    labels = _labels(node)
    if labels is None or first is None or second is None or not (is_float32(first) and is_float32(second)):
        return None
    one, two, result = labels
    if (rank_of(first), rank_of(second)) != (len(one), len(two)):
        return None
    if array_of(first) is not None or (array_of(second) is None and len(one) < len(two)):
        first, second, one, two = second, first, two, one
    product = _Product(
        first=first,
        second=second,
        labels=(one, two, result),
        batch="".join(label for label in result if label in one and label in two),
        left="".join(label for label in one if label in result and label not in two),
        right="".join(label for label in two if label in result and label not in one),
        summed="".join(label for label in one if label in two and label not in result),
    )
    return product if _is_matmul(product) else None


def _labels(node: ir.Node) -> tuple[str, str, str] | None:
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    operands, arrow, result = equation.partition("->")
    parts = operands.split(",")
    if not arrow or len(parts) != 2 or "." in equation:
        return None
    one, two = parts
    repeated = any(len(set(part)) != len(part) for part in (one, two, result))
    alone = set(one) ^ set(two)
    # An axis of one operand that is summed is not a product, and one of the result alone is an error.
    return None if repeated or not alone <= set(result) <= set(one + two) else (one, two, result)


def _is_matmul(product: _Product) -> bool:
    one_each = len(product.left) == len(product.right) == len(product.summed) == 1
    # The second operand has no batch axes to keep in step with, so that the first may have any.
    plain = not product.batch and bool(product.left and product.right and product.summed)
    merged = len(product.right) > 1 or len(product.summed) > 1
    fits = one_each or (plain and (not merged or array_of(product.second) is not None))
    first, second = map(_sizes, (product.first, product.second), product.labels)
    same = all(_agree(first.get(label), second.get(label)) for label in product.summed)
    return fits and same


def _sizes(value: ir.Value, labels: str) -> dict[str, int]:
    sizes = list(value.shape) if value.shape is not None else []
    return {label: size for label, size in zip(labels, sizes, strict=True) if isinstance(size, int)}


def _agree(one: int | None, other: int | None) -> bool:
    # Einsum lets a size of 1 stand for another, MatMul does not; a size that is not known is taken to agree.
    return one is None or other is None or one == other


def _write(node: ir.Node, product: _Product, names: FreshNames) -> None:
    _, _, result = product.labels
    first = _first(node, product, names)
    second = _second(node, product, names)
    made = product.batch + product.left + product.right
    reshaped = len(product.right) > 1
    if made == result and not reshaped:
        put_instead(ir.Node("", "MatMul", [first, second]), node, names)
        return
    value = put_before(node, ir.Node("", "MatMul", [first, second]), names)
    if reshaped:
        sizes = _sizes(product.second, product.labels[1])
        shape = [0] * len(product.left) + [sizes[label] for label in product.right]
        reshape = _reshape(node, value, shape, names)
        if made == result:
            put_instead(reshape, node, names)
            return
        value = put_before(node, reshape, names)
    put_instead(_transpose(value, _order(made, result)), node, names)


def _first(node: ir.Node, product: _Product, names: FreshNames) -> ir.Value:
    value = product.first
    wanted = product.batch + product.left + product.summed
    if product.labels[0] != wanted:
        value = put_before(node, _transpose(value, _order(product.labels[0], wanted)), names)
    if len(product.summed) > 1:
        shape = [0] * len(product.left) + [-1]
        value = put_before(node, _reshape(node, value, shape, names), names)
    return value


def _second(node: ir.Node, product: _Product, names: FreshNames) -> ir.Value:
    value, labels = product.second, product.labels[1]
    wanted = product.batch + product.summed + product.right
    array = array_of(value)
    merged = len(product.right) > 1 or len(product.summed) > 1
    if labels == wanted and not merged:
        return value
    if array is None:
        return put_before(node, _transpose(value, _order(labels, wanted)), names)
    moved = np.transpose(array, _order(labels, wanted))
    if merged:
        sizes = _sizes(value, labels)
        moved = moved.reshape(int(np.prod([sizes[label] for label in product.summed])), -1)
    return add_constant(node.graph, np.ascontiguousarray(moved), value.name or "weight", names)


def _order(labels: str, wanted: str) -> list[int]:
    return [labels.index(label) for label in wanted]


def _transpose(value: ir.Value, order: list[int]) -> ir.Node:
    return ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", order)])


def _reshape(node: ir.Node, value: ir.Value, shape: list[int], names: FreshNames) -> ir.Node:
    sizes = add_constant(node.graph, np.array(shape, np.int64), "einsum.shape", names)
    return ir.Node("", "Reshape", [value, sizes])


def _turn_matmul(node: ir.Node, names: FreshNames) -> bool:
    """Write a MatMul with a constant on its left, ``W x``, as ``(xᵀ Wᵀ)ᵀ``: a scale for each output channel.

    Requires: float32, the other operand has two axes or more. The transposes are of values that are quantized
    where they can be; one that undoes another goes.
    """
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


def _as_matrices(graph: ir.Graph, names: FreshNames) -> int:
    return sum(_as_matrix(graph, value, names) for value in list(graph.initializers.values()))


def _as_matrix(graph: ir.Graph, value: ir.Value, names: FreshNames) -> int:
    """Drop unit leading axes of a MatMul's weight, and return how many nodes read it.

    Requires: float32, the rank of the other operand is known. Ensures: the weight is a matrix; what its axes
    alone gave the result, an Unsqueeze gives it.
    """
    shape = constant_shape(value)
    if (
        len(shape) <= _MATRIX
        or set(shape[:-_MATRIX]) != {1}
        or value.is_graph_input()
        or not is_float32(value)
    ):
        return 0
    readers = [use.node for use in value.uses() if use.idx == 1 and use.node.op_type == "MatMul"]
    readers = [node for node in readers if node.domain == "" and (rank_of(node.inputs[0]) or 0) > 0]
    if not readers or value.const_value is None:
        return 0
    is_own = len(readers) == len(value.uses()) and not value.is_graph_output()
    name = (value.name or "") if is_own else names.claim(value.name or "weight")
    moved = moved_tensor(value.const_value, lambda array: array.reshape(array.shape[-_MATRIX:]), name)
    if is_own:
        value.const_value, value.shape = moved, ir.Shape(shape[-_MATRIX:])
    matrix = value if is_own else register_constant(graph, moved)
    for node in readers:
        rank = rank_of(node.inputs[0]) or 0
        lost = len(shape) - max(rank, _MATRIX)
        if lost <= 0:
            node.replace_input_with(1, matrix)
            continue
        product = put_before(node, ir.Node("", "MatMul", [node.inputs[0], matrix]), names)
        axes = add_constant(graph, np.arange(lost, dtype=np.int64), "unit.axes", names)
        put_instead(ir.Node("", "Unsqueeze", [product, axes]), node, names)
    return len(readers)


_MATRIX = 2
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
