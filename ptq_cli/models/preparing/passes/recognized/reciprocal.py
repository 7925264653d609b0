"""A product with a reciprocal becomes the quotient that it is.

Requires: float32; the reciprocal is a Reciprocal, or a Pow to -1 or -1/2. Ensures: Div, by the square root of
what had the power of -1/2; equal to rounding. Normalizations that no single operator stands for are written
so (RMS normalization, by the length, by the statistics of a batch), and targets multiply integers where they
do not divide them: the reciprocal of a variance in 8 bits leaves nothing of what is small.
"""

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.preparing.rewriting.edit import put_before, put_instead
from ptq_cli.models.preparing.rewriting.match import array_of, is_float32, made_by, operand_beside, scalar_of
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass


def divide_by_reciprocals(graph: ir.Graph, names: FreshNames) -> int:
    """Make a Div of each product with a reciprocal, and return how many."""
    count = 0
    for node in [item for item in graph if item.op_type == "Mul" and item.domain == ""]:
        found = _dividend_and_divisor(node, names)
        if found is not None:
            put_instead(ir.Node("", "Div", list(found)), node, names)
            count += 1
    return count


RECIPROCAL = RewritePass("reciprocal", "Mul by a reciprocal into Div", divide_by_reciprocals)


def _dividend_and_divisor(node: ir.Node, names: FreshNames) -> tuple[ir.Value, ir.Value] | None:
    for factor in reversed(node.inputs):
        inverse = made_by(factor, "Reciprocal", "Pow")
        other = operand_beside(node, factor) if factor is not None else None
        if inverse is None or other is None or array_of(other) is not None or not is_float32(other):
            continue
        base = inverse.inputs[0]
        power = -1.0 if inverse.op_type == "Reciprocal" else scalar_of(input_at(inverse, 1))
        if base is None or power not in (-1.0, -0.5):
            continue
        return other, base if power == -1.0 else put_before(node, ir.Node("", "Sqrt", [base]), names)
    return None
