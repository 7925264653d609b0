"""How a written-out activation function is found, and becomes the one operator it is."""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import rank_of
from ptq_cli.models.preparing.rewriting.edit import put_instead
from ptq_cli.models.preparing.rewriting.formula import Terms, is_formula, results_of, terms_of, variables_of
from ptq_cli.models.preparing.rewriting.match import is_float32


def fuse_activation(
    graph: ir.Graph,
    names: FreshNames,
    term: str,
    matches: Callable[[ir.Node, ir.Value], Terms | None],
    operator: str,
    attributes: Mapping[str, str] | None = None,
) -> int:
    """Replace each written-out form of an activation by its operator, and return how many.

    Requires: nothing outside the form reads its nonlinear term. Ensures: one operator that reads x; what else
    reads a part of the form still has it.

    Args:
        graph: is changed in place.
        names: that are free.
        term: operator type of the nonlinear term, such as ``Erf``.
        matches: given a node of that type and x, the polynomial that the whole form must be, or None where
            the term's own argument does not fit.
        operator: what the form is.
        attributes: of that operator.
    """
    count = 0
    for node in [item for item in graph if item.op_type == term and item.domain == ""]:
        found = _find(node, matches)
        if found is None:
            continue
        root, x = found
        texts = [ir.AttrString(name, value) for name, value in (attributes or {}).items()]
        put_instead(ir.Node("", operator, [x], texts), root, names)
        count += 1
    return count


def _find(
    node: ir.Node, matches: Callable[[ir.Node, ir.Value], Terms | None]
) -> tuple[ir.Node, ir.Value] | None:
    for x in variables_of(node.inputs[0]):
        wanted = matches(node, x)
        if wanted is None or not is_float32(x):
            continue
        for root in results_of(node.outputs[0]):
            result = root.outputs[0]
            # A constant with more axes than x adds axes to the result.
            same_rank = rank_of(x) is not None and rank_of(x) == rank_of(result)
            if same_rank and is_formula(terms_of(result, x, node.outputs[0]), wanted):
                return root, x
    return None
