"""``x * sigmoid(x)`` becomes Swish, where the opset has it.

Requires: opset 24, float32. Ensures: Swish with ``alpha`` 1. Below opset 24 the two operators stay: a newer
opset for this alone would leave behind the runtimes that do not know it.

Source:
    Elfwing et al., "Sigmoid-weighted linear units", https://arxiv.org/abs/1702.03118.
"""

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.preparing.rewriting.activation_form import fuse_activation
from ptq_cli.models.preparing.rewriting.formula import Terms
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass


def fuse_silu(graph: ir.Graph, names: FreshNames) -> int:
    """Fuse each SiLU that is written out, and return how many."""
    return fuse_activation(graph, names, "Sigmoid", _sigmoid, "Swish")


SILU = RewritePass("silu", "x * sigmoid(x) into Swish", fuse_silu, opset=24)


def _sigmoid(node: ir.Node, x: ir.Value) -> Terms | None:
    return {(1, 1): 1.0} if node.inputs[0] is x else None
