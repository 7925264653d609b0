"""Gemm's ``alpha`` into its weight and ``beta`` into its bias.

Requires: weight and bias are constants. Ensures: both factors are 1, as the integer kernels need them; equal
to rounding. onnxscript has no such rule.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.preparing.rewriting.edit import set_constant
from ptq_cli.models.preparing.rewriting.match import floats_of
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass


def fold_gemm_factors(graph: ir.Graph, names: FreshNames) -> int:
    """Fold the factors of every Gemm that can be, and return how many."""
    return sum(_fold(node, names) for node in graph if node.op_type == "Gemm" and node.domain == "")


GEMM_FACTORS = RewritePass(
    "gemm_factors", "alpha and beta of Gemm into its weight and bias", fold_gemm_factors
)


def _fold(node: ir.Node, names: FreshNames) -> bool:
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    third = input_at(node, 2)
    weight, bias = floats_of(input_at(node, 1)), floats_of(third)
    if (alpha == 1.0 and beta == 1.0) or weight is None or (third is not None and bias is None):
        return False
    dtype = weight.dtype
    name = f"{node.name or 'Gemm'}"
    if alpha != 1.0:
        set_constant(node, 1, (weight * np.float32(alpha)).astype(dtype), f"{name}.weight", names)
    if beta != 1.0 and bias is not None:
        set_constant(node, 2, (bias * np.float32(beta)).astype(dtype), f"{name}.bias", names)
    for attribute in ("alpha", "beta"):
        node.attributes.pop(attribute, None)
    return True
