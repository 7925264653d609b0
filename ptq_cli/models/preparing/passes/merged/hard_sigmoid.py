"""The slope and the offset of a HardSigmoid go into the layer before it, and a Clip to [0, 1] remains.

Requires: float32; a Conv, ConvTranspose or Gemm with a constant weight, whose result only the HardSigmoid
reads. Ensures: equal to rounding. The Clip disappears into a quantized range, while a HardSigmoid has no
integer kernel, and kept each gate of squeeze-and-excitation in a MobileNetV3 in float.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import sole_reader
from ptq_cli.models.preparing.rewriting.affine_layer import affine_layer
from ptq_cli.models.preparing.rewriting.edit import add_constant, put_instead
from ptq_cli.models.preparing.rewriting.match import is_float32
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass

ALPHA, BETA = 0.2, 0.5
"""HardSigmoid's own, where a node names none."""


def fold_hard_sigmoids(graph: ir.Graph, names: FreshNames) -> int:
    """Fold each HardSigmoid that can be into the layer before it, and return how many."""
    count = 0
    for node in [item for item in graph if item.op_type == "HardSigmoid" and item.domain == ""]:
        source = node.inputs[0]
        if source is None or sole_reader(source) is not node or not is_float32(source):
            continue
        layer = affine_layer(source.producer())
        if layer is None:
            continue
        alpha = np.float32(node.attributes.get_float("alpha", ALPHA))
        beta = np.float32(node.attributes.get_float("beta", BETA))
        layer.write(layer.scaled(np.full(layer.channels, alpha)), layer.bias * alpha + beta, names)
        bounds = [
            add_constant(graph, np.asarray(bound, np.float32), f"{node.name}_{bound}", names)
            for bound in (0, 1)
        ]
        put_instead(ir.Node("", "Clip", [source, *bounds]), node, names)
        count += 1
    return count


HARD_SIGMOID = RewritePass(
    "hard_sigmoid", "HardSigmoid into the layer before it and a Clip", fold_hard_sigmoids
)
