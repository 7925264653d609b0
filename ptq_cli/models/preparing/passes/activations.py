"""Activation functions that are written out in float32 become the operators that they are."""

import math

import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.preparing.formulas import TOLERANCE, Terms, fuse_activation, is_formula, terms_of
from ptq_cli.models.preparing.rewriting import (
    RewritePass,
    scalar_of,
)


def _clip(node: ir.Node, x: ir.Value) -> Terms | None:
    """HardSwish as ``x * clip(x + 3, 0, 6) / 6`` in any order; onnxscript's rules take two of the orders.

    Source:
        Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2.
    """
    lowest, highest = scalar_of(input_at(node, 1)), scalar_of(input_at(node, 2))
    if lowest != 0.0 or highest is None or highest <= 0.0:
        return None
    # clip(a x + b, 0, c) = c clip(x / 6 + 1/2, 0, 1) where a = c / 6 and b = c / 2.
    argument = {(1, 0): highest / 6.0, (0, 0): highest / 2.0}
    return {(1, 1): 1.0 / highest} if is_formula(terms_of(node.inputs[0], x), argument) else None


def _hard_sigmoid(node: ir.Node, x: ir.Value) -> Terms | None:
    """HardSwish as ``x * HardSigmoid(x)`` with alpha 1/6 and beta 1/2."""
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
WHOLE = {(1, 0): 0.5, (1, 1): 0.5}  # 0.5 x (1 + t), t = erf(x / sqrt(2)) or tanh(sqrt(2 / pi) (x + …))
ERF_ARGUMENT = {(1, 0): math.sqrt(0.5)}
TANH_ARGUMENT = {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)}


def _gelu(node: ir.Node, x: ir.Value) -> Terms | None:
    """GELU by erf or tanh: inside it ``1 + erf(…)`` would be rounded to 256 levels.

    Source:
        Hendrycks and Gimpel, "Gaussian Error Linear Units", https://arxiv.org/abs/1606.08415, section 2.
    """
    argument = ERF_ARGUMENT if node.op_type == "Erf" else TANH_ARGUMENT
    return WHOLE if is_formula(terms_of(node.inputs[0], x), argument) else None


_EXACT, _BY_TANH = fuse_activation(_gelu, "Gelu", "Erf"), fuse_activation(_gelu, "Gelu", "Tanh")
GELU = RewritePass(
    "gelu",
    "erf or tanh form into Gelu",
    lambda graph, names: _EXACT(graph, names) + _BY_TANH(graph, names),
    opset=20,
)


def _sigmoid(node: ir.Node, x: ir.Value) -> Terms | None:
    """Swish with ``alpha`` 1 for ``x * sigmoid(x)``, from opset 24 on: few runtimes know it.

    Source:
        Elfwing et al., "Sigmoid-weighted linear units", https://arxiv.org/abs/1702.03118.
    """
    return {(1, 1): 1.0} if node.inputs[0] is x else None


SILU = RewritePass(
    "silu", "x * sigmoid(x) into Swish", fuse_activation(_sigmoid, "Swish", "Sigmoid"), opset=24
)
