"""Activation functions that are written out, read as a formula, become the operators that they are.

Exporters write one function in many ways: ``0.5 * x * (1 + erf(x / sqrt(2)))`` associates in five, and
halves before or after. As polynomials in x and in one nonlinear term they are all the same.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from ptq_cli.models.graph_reading import FreshNames, input_at, rank_of
from ptq_cli.models.preparing.rewriting import (
    Apply,
    RewritePass,
    each_node,
    is_float32,
    made_by,
    put_instead,
    scalar_of,
)

# Coefficients by powers of x and of the term: 0.5 x + 2 x t is {(1, 0): 0.5, (1, 1): 2.0}
Terms = Mapping[tuple[int, int], float]
DEPTH = 10
HIGHEST_POWER = 4
_TOLERANCE = 2e-4  # exporters write sqrt(2) as 1.4142; no two functions are nearer
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Neg")


def terms_of(
    value: ir.Value | None, x: ir.Value, term: ir.Value | None = None, depth: int = DEPTH
) -> Terms | None:
    """Return a value as a polynomial in ``x`` and ``term``, or None where it is none."""
    if value is x:
        return {(1, 0): 1.0}
    if value is term and value is not None:
        return {(0, 1): 1.0}
    number = scalar_of(value)
    if number is not None:
        return {(0, 0): number}
    node = made_by(value, *_ARITHMETIC)
    if node is None or depth == 0:
        return None
    parts = [terms_of(item, x, term, depth - 1) for item in node.inputs]
    known = [part for part in parts if part is not None]
    return _COMBINE[node.op_type](*known) if len(known) == len(parts) else None


def is_formula(found: Terms | None, wanted: Terms) -> bool:
    """Tell whether two polynomials are the same.

    Example:
        >>> is_formula({(1, 0): 0.50001, (2, 0): 0.0}, {(1, 0): 0.5})
        True
    """
    if found is None:
        return False
    powers = set(found) | set(wanted)
    largest = max(abs(number) for number in wanted.values())
    return all(
        abs(found.get(power, 0.0) - wanted.get(power, 0.0))
        <= _TOLERANCE * max(abs(wanted.get(power, 0.0)), 1e-3 * largest)
        for power in powers
    )


def variables_of(value: ir.Value | None, depth: int = DEPTH) -> Iterator[ir.Value]:
    """Yield the values that arithmetic computes ``value`` from, itself first: what x may be."""
    if value is None or scalar_of(value) is not None:
        return
    yield value
    node = made_by(value, *_ARITHMETIC)
    if node is not None and depth:
        for item in node.inputs:
            yield from variables_of(item, depth - 1)


def results_of(value: ir.Value, depth: int = DEPTH) -> Iterator[ir.Node]:
    """Yield the arithmetic that alone reads ``value``, and what alone reads that: what may end a formula."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or depth == 0:
        return
    node = uses[0].node
    if node.op_type in _ARITHMETIC and node.domain == "":
        yield node
        yield from results_of(node.outputs[0], depth - 1)


def _add(first: Terms, second: Terms, sign: float = 1.0) -> Terms:
    powers = set(first) | set(second)
    return {power: first.get(power, 0.0) + sign * second.get(power, 0.0) for power in powers}


def _multiply(first: Terms, second: Terms) -> Terms | None:
    product: dict[tuple[int, int], float] = {}
    for (a, b), left in first.items():
        for (c, d), right in second.items():
            if a + c > HIGHEST_POWER or b + d > HIGHEST_POWER:
                return None
            product[a + c, b + d] = product.get((a + c, b + d), 0.0) + left * right
    return product


def _divide(first: Terms, second: Terms) -> Terms | None:
    divisor = second.get((0, 0), 0.0)
    if set(second) != {(0, 0)} or divisor == 0.0:
        return None
    return {power: number / divisor for power, number in first.items()}


def _power(base: Terms, exponent: Terms) -> Terms | None:
    number = exponent.get((0, 0), 0.0)
    if set(exponent) != {(0, 0)} or number not in (1.0, 2.0, 3.0):
        return None
    result: Terms | None = base
    for _ in range(int(number) - 1):
        result = _multiply(result, base) if result is not None else None
    return result


_COMBINE: Mapping[str, Callable[..., Terms | None]] = {
    "Add": _add,
    "Sub": lambda first, second: _add(first, second, -1.0),
    "Mul": _multiply,
    "Div": _divide,
    "Pow": _power,
    "Neg": lambda terms: {power: -number for power, number in terms.items()},
}


def fuse_activation(matches: Callable[[ir.Node, ir.Value], Terms | None], operator: str, term: str) -> Apply:
    """Return a pass that replaces each written-out form of an activation by its operator.

    Requires: nothing outside the form reads its nonlinear term. Ensures: one operator that reads x; what else
    reads a part of the form still has it.

    Args:
        matches: given a node of the type ``term`` and x, the polynomial that the whole form must be, or None
            where the term's own argument does not fit.
        operator: what the form is; Gelu by a Tanh is the approximate one.
        term: operator type of the nonlinear term, such as ``Erf``.
    """

    def fuse(node: ir.Node, names: FreshNames) -> bool:
        found = _find(node, matches)
        if found is None:
            return False
        root, x = found
        attributes = [ir.AttrString("approximate", "tanh")] if (operator, term) == ("Gelu", "Tanh") else []
        put_instead(ir.Node("", operator, [x], attributes), root, names)
        return True

    return each_node(fuse, term)


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


def _clip(node: ir.Node, x: ir.Value) -> Terms | None:
    """HardSwish as ``x * clip(x + 3, 0, 6) / 6`` in any order; onnxscript's rules take two of the orders.

    Source: Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2.
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
    fits = math.isclose(alpha, 1 / 6, rel_tol=_TOLERANCE) and math.isclose(beta, 0.5, rel_tol=_TOLERANCE)
    return {(1, 1): 1.0} if node.inputs[0] is x and fits else None


_CLIPPED = fuse_activation(_clip, "HardSwish", "Clip")
_SPELLED = fuse_activation(_hard_sigmoid, "HardSwish", "HardSigmoid")
HARD_SWISH = RewritePass(
    "hard_swish",
    "x * clip(x + 3, 0, 6) / 6 into HardSwish",
    lambda graph, names: _CLIPPED(graph, names) + _SPELLED(graph, names),
    opset=14,
)
_WHOLE = {(1, 0): 0.5, (1, 1): 0.5}  # 0.5 x (1 + t), t = erf(x / sqrt(2)) or tanh(sqrt(2 / pi) (x + …))
ERF_ARGUMENT = {(1, 0): math.sqrt(0.5)}
TANH_ARGUMENT = {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)}


def _gelu(node: ir.Node, x: ir.Value) -> Terms | None:
    """GELU by erf or tanh: inside it ``1 + erf(…)`` would be rounded to 256 levels.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", https://arxiv.org/abs/1606.08415, section 2.
    """
    argument = ERF_ARGUMENT if node.op_type == "Erf" else TANH_ARGUMENT
    return _WHOLE if is_formula(terms_of(node.inputs[0], x), argument) else None


_EXACT, _BY_TANH = fuse_activation(_gelu, "Gelu", "Erf"), fuse_activation(_gelu, "Gelu", "Tanh")
GELU = RewritePass(
    "gelu",
    "erf or tanh form into Gelu",
    lambda graph, names: _EXACT(graph, names) + _BY_TANH(graph, names),
    opset=20,
)


def _sigmoid(node: ir.Node, x: ir.Value) -> Terms | None:
    """Swish with ``alpha`` 1 for ``x * sigmoid(x)``, from opset 24 on: few runtimes know it.

    Source: Elfwing et al., "Sigmoid-weighted linear units", https://arxiv.org/abs/1702.03118.
    """
    return {(1, 1): 1.0} if node.inputs[0] is x else None


SILU = RewritePass(
    "silu", "x * sigmoid(x) into Swish", fuse_activation(_sigmoid, "Swish", "Sigmoid"), opset=24
)
