"""Mul and Div by a constant into the MatMul before them, and into its bias where it has one.

Requires: the MatMul's second operand and the bias are constants, the factor has one number for all columns or
one for each, and nothing else reads what lies between. Ensures: the same without the factor, equal to
rounding. Layer scale, and half a feed-forward's result, are written so; PyTorch exports a Linear of more than
two axes as MatMul and Add.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import rank_of, sole_reader
from ptq_cli.models.preparing.rewriting.edit import drop, set_constant, take_place
from ptq_cli.models.preparing.rewriting.match import Floats, floats_of, made_by, operand_beside
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass


@dataclass(frozen=True)
class _Product:
    """A MatMul by a constant, with the Add of its bias and the bias's place among that one's inputs."""

    matmul: ir.Node
    add: ir.Node | None = None
    bias_index: int = 0

    @property
    def result(self) -> ir.Value:
        return (self.add or self.matmul).outputs[0]


def fold_matmul_factors(graph: ir.Graph, names: FreshNames) -> int:
    """Fold each factor that can be, and return how many."""
    return sum(_fold(node, names) for node in graph if node.op_type in ("Mul", "Div") and node.domain == "")


MATMUL_FACTOR = RewritePass(
    "matmul_factor", "Mul by a constant into the MatMul before it", fold_matmul_factors
)


def _fold(node: ir.Node, names: FreshNames) -> bool:
    product, factor = _operands(node)
    if product is None or factor is None:
        return False
    weight = floats_of(product.matmul.inputs[1])
    bias = floats_of(product.add.inputs[product.bias_index]) if product.add is not None else None
    columns = weight.shape[-1] if weight is not None else 0
    if weight is None or factor.dtype != weight.dtype or factor.size not in (1, columns):
        return False
    # One number for each column lies on the last axis, and adds no axis to the result.
    if (factor.size > 1 and factor.shape[-1] != columns) or factor.ndim > (rank_of(product.result) or 0):
        return False
    if not np.all(np.isfinite(factor)) or (node.op_type == "Div" and np.any(factor == 0)):
        return False
    scale = (1 / factor if node.op_type == "Div" else factor).reshape(-1)
    name = product.matmul.name or "MatMul"
    set_constant(product.matmul, 1, (weight * scale).astype(weight.dtype), f"{name}.weight", names)
    if product.add is not None and bias is not None:
        scaled = (bias * scale).astype(weight.dtype)
        set_constant(product.add, product.bias_index, scaled, f"{name}.bias", names)
    take_place(product.result, node.outputs[0], names)
    drop(node)
    return True


def _operands(node: ir.Node) -> tuple[_Product | None, Floats | None]:
    for index, source in enumerate(node.inputs):
        if source is None or (index == 1 and node.op_type == "Div") or sole_reader(source) is not node:
            continue
        product = _product(source)
        factor = floats_of(operand_beside(node, source))
        if product is not None and factor is not None:
            return product, factor
    return None, None


def _product(value: ir.Value) -> _Product | None:
    matmul = made_by(value, "MatMul")
    if matmul is not None:
        return _Product(matmul) if _has_weight(matmul) else None
    add = made_by(value, "Add")
    if add is None:
        return None
    for index, other in enumerate(add.inputs):
        source = operand_beside(add, other) if other is not None else None
        matmul = made_by(source, "MatMul")
        if source is None or matmul is None or not _has_weight(matmul) or sole_reader(source) is not add:
            continue
        bias, weight = floats_of(other), floats_of(matmul.inputs[1])
        if bias is not None and weight is not None and bias.dtype == weight.dtype:
            return _Product(matmul, add, index)
    return None


def _has_weight(matmul: ir.Node) -> bool:
    weight = floats_of(matmul.inputs[1])
    return weight is not None and weight.ndim >= 2 and floats_of(matmul.inputs[0]) is None
