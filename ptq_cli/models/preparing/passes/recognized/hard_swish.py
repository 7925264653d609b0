"""HardSwish written out becomes HardSwish.

Requires: opset 14, float32. Ensures: HardSwish for ``x * clip(x + 3, 0, 6) / 6`` in any order of its factors,
and for ``x * HardSigmoid(x)`` with alpha 1/6 and beta 1/2. onnxscript's rules take two of these orders.

Source:
    Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2.
"""

import math

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.preparing.rewriting.activation_form import fuse_activation
from ptq_cli.models.preparing.rewriting.formula import TOLERANCE, Terms, is_formula, terms_of
from ptq_cli.models.preparing.rewriting.match import scalar_of
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass


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
