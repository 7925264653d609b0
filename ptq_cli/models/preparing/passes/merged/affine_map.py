"""Add, Sub, Mul and Div of a constant into the Conv, ConvTranspose or Gemm before them.

Requires: the constant has one number a channel, or one for all; the layer's weight and bias are constants,
and nothing else reads the layer. Ensures: one layer, equal to rounding. The bias that some exporters write
as an Add becomes the layer's own, as the integer kernels need it.

onnxscript's rule takes a Conv that is followed by both, with one number each.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import sole_reader
from ptq_cli.models.preparing.rewriting.affine_layer import AffineLayer, affine_layer, per_channel
from ptq_cli.models.preparing.rewriting.edit import drop, take_place
from ptq_cli.models.preparing.rewriting.match import Floats, floats_of, operand_beside
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass


def fold_shifts(graph: ir.Graph, names: FreshNames) -> int:
    """Fold every Add and Sub of a constant that can be, and return how many."""
    return _fold_all(graph, ("Add", "Sub"), names)


def fold_factors(graph: ir.Graph, names: FreshNames) -> int:
    """Fold every Mul and Div by a constant that can be, and return how many."""
    return _fold_all(graph, ("Mul", "Div"), names)


BIAS_ADD = RewritePass("bias_add", "Add of a constant into the layer before it", fold_shifts)
FACTOR = RewritePass("factor", "Mul by a constant into the layer before it", fold_factors)


def _fold_all(graph: ir.Graph, op_types: tuple[str, ...], names: FreshNames) -> int:
    count = 0
    for node in [item for item in graph if item.op_type in op_types and item.domain == ""]:
        operand = _layer_and_constant(node)
        if operand is None:
            continue
        layer, numbers = operand
        _fold(node, layer, numbers, names)
        count += 1
    return count


def _layer_and_constant(node: ir.Node) -> tuple[AffineLayer, Floats] | None:
    for index, source in enumerate(node.inputs):
        # A constant that is divided, or that something is subtracted from, is another function.
        if source is None or (index == 1 and node.op_type in ("Sub", "Div")):
            continue
        layer, other = affine_layer(source.producer()), operand_beside(node, source)
        array = floats_of(other)
        if layer is None or array is None or sole_reader(source) is not node:
            continue
        numbers = per_channel(array, layer)
        if numbers is None or array.dtype != layer.weight.dtype or not np.all(np.isfinite(numbers)):
            continue
        if node.op_type == "Div" and np.any(numbers == 0):
            continue
        return layer, numbers
    return None


def _fold(node: ir.Node, layer: AffineLayer, numbers: Floats, names: FreshNames) -> None:
    if node.op_type in ("Add", "Sub"):
        layer.write(None, layer.bias + numbers if node.op_type == "Add" else layer.bias - numbers, names)
    else:
        factor = numbers if node.op_type == "Mul" else 1 / numbers
        layer.write(layer.scaled(factor), layer.bias * factor, names)
    take_place(layer.node.outputs[0], node.outputs[0], names)
    drop(node)
