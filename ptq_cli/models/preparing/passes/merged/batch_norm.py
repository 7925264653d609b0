"""BatchNormalization into the Conv, ConvTranspose or Gemm before it.

Requires: the layer's weight and bias and the four parameters are constants, statistics are fixed
(``training_mode`` 0), and nothing else reads the layer. Ensures: one layer with a bias, equal to rounding.

onnxscript has such a rule. It also folds a BatchNormalization that computes the statistics of the batch,
leaves one behind a shared weight, and breaks the graph where its bias's name is taken; hence this one.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import sole_reader
from ptq_cli.models.preparing.rewriting.affine_layer import affine_layer
from ptq_cli.models.preparing.rewriting.edit import drop, take_place
from ptq_cli.models.preparing.rewriting.match import Floats, floats_of
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass

DEFAULT_EPSILON = 1e-5


def fold_batch_norm(graph: ir.Graph, names: FreshNames) -> int:
    """Fold every BatchNormalization that can be, and return how many."""
    found = [node for node in graph if node.op_type == "BatchNormalization" and node.domain == ""]
    return sum(_fold(node, names) for node in found)


BATCH_NORM = RewritePass("batch_norm", "BatchNormalization into the layer before it", fold_batch_norm)


def _fold(node: ir.Node, names: FreshNames) -> bool:
    source = node.inputs[0]
    layer = affine_layer(source.producer()) if source is not None else None
    parameters = _parameters(node)
    if source is None or layer is None or parameters is None or sole_reader(source) is not node:
        return False
    if any(array.size != layer.channels for array in parameters):
        return False
    scale, shift, mean, variance = parameters
    epsilon = node.attributes.get_float("epsilon", DEFAULT_EPSILON)
    factor = (scale / np.sqrt(variance + np.float32(epsilon))).astype(layer.weight.dtype)
    layer.write(layer.scaled(factor), (layer.bias - mean) * factor + shift, names)
    take_place(source, node.outputs[0], names)
    drop(node)
    return True


def _parameters(node: ir.Node) -> list[Floats] | None:
    """Return scale, bias, mean and variance, or None where they are not fixed."""
    if node.attributes.get_int("training_mode", 0) or any(value.uses() for value in node.outputs[1:]):
        return None
    arrays = [floats_of(value) for value in node.inputs[1:5]]
    known = [array for array in arrays if array is not None]
    return known if len(known) == 4 else None
