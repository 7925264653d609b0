"""GELU written out, by erf or by tanh, becomes Gelu.

Requires: opset 20, float32. Ensures: Gelu, exact or with ``approximate = "tanh"``, so that quantizers land on
its edges and not inside it, where ``1 + erf(…)`` would be rounded to 256 levels.

Source:
    Hendrycks and Gimpel, "Gaussian Error Linear Units", https://arxiv.org/abs/1606.08415, section 2.
"""

import math

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.preparing.rewriting.activation_form import fuse_activation
from ptq_cli.models.preparing.rewriting.formula import Terms, is_formula, terms_of
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass

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
