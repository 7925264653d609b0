"""What the passes ask about a graph."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, every_graph, rank_of, register_constant, remove_unused

Floats = npt.NDArray[np.floating[Any]]


def array_of(value: ir.Value | None) -> Array | None:
    """Return the array of a constant, or None where a value is computed, fed or absent."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return np.asarray(value.const_value.numpy())


def floats_of(value: ir.Value | None) -> Floats | None:
    """Return the array of a constant of floats that numpy computes with, or None."""
    array = array_of(value)
    return np.asarray(array) if array is not None and array.dtype.kind == "f" else None


def scalar_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant of one element, or None."""
    array = array_of(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes a value if it is one of these operators of ONNX's own."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def is_float32(value: ir.Value | None) -> bool:
    """Tell whether a value is float32. Another width rounds elsewhere, and has fewer kernels."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def operand_beside(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other input of a node of two, or None where both are the same."""
    first, second = node.inputs[0], node.inputs[1]
    if (first is value) == (second is value):
        return None
    return second if first is value else first


# How the passes change a graph: constants of a node's own, and values that take another's place.


def set_constant(node: ir.Node, index: int, array: Array, wanted: str, names: FreshNames) -> None:
    """Give a node an input that is a constant, under the name ``wanted`` if it is a new one.

    A constant that others read too stays as it is for them; the node gets its own.
    """
    old = node.inputs[index] if index < len(node.inputs) else None
    if old is not None and old.is_initializer() and len(old.uses()) == 1 and not old.is_graph_output():
        old.const_value = ir.tensor(array, name=old.name)
        old.dtype, old.shape = old.const_value.dtype, ir.Shape(array.shape)
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, add_constant(node.graph, array, wanted, names))


def add_constant(
    owner: ir.Graph | ir.Function | None, array: Array, wanted: str, names: FreshNames
) -> ir.Value:
    """Return a new initializer of a graph."""
    if not isinstance(owner, ir.Graph):
        raise TypeError("only a graph has initializers")
    return register_constant(owner, ir.tensor(array, name=names.claim(wanted)))


def take_place(value: ir.Value, old: ir.Value, names: FreshNames) -> None:
    """Let ``value`` be read wherever ``old`` was, as an output of the graph under its name too."""
    is_output = old.is_graph_output()
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    if is_output:
        name = old.name
        old.name = names.claim(f"{name}.replaced")
        value.name = name
    if old.shape is not None:
        value.shape, value.type = old.shape, old.type


def drop(node: ir.Node) -> None:
    """Remove a node whose outputs nobody reads."""
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def put_instead(node: ir.Node, root: ir.Node, names: FreshNames) -> None:
    """Let a new node stand for what ``root`` computes; what only ``root`` needed is removed later.

    It has the name of ``root`` and its metadata, which tell the layer.
    """
    if not isinstance(root.graph, ir.Graph):
        raise TypeError("only nodes of a graph are replaced")
    old = root.outputs[0]
    node.outputs[0].name = names.claim(old.name or node.op_type)
    node.outputs[0].type, node.outputs[0].shape = old.type, old.shape
    node.name = root.name
    node.metadata_props.update(root.metadata_props)
    root.graph.insert_before(root, node)
    take_place(node.outputs[0], old, names)
    drop(root)


def put_before(root: ir.Node, node: ir.Node, names: FreshNames) -> ir.Value:
    """Insert a node in front of ``root``, which is about to go, and return what it computes.

    It is named for ``root`` and has its metadata, which tell the layer; shapes are inferred later.
    """
    if not isinstance(root.graph, ir.Graph):
        raise TypeError("only nodes of a graph are replaced")
    node.name = names.claim(f"{root.name or root.op_type}/{node.op_type}")
    node.outputs[0].name = names.claim(f"{node.name}.output")
    node.outputs[0].type = root.outputs[0].type
    node.metadata_props.update(root.metadata_props)
    root.graph.insert_before(root, node)
    return node.outputs[0]


# What a pass is, and how the passes run.


MOST_ROUNDS = 10
"""One fold makes room for the next: Conv, Add, BatchNormalization, Mul. No real chain is longer."""


Apply = Callable[[ir.Graph, FreshNames], int]


@dataclass(frozen=True)
class RewritePass:
    """A rewrite of one graph: the main graph, or one that is nested in it.

    Attributes:
        name: a word or two, for messages and tests.
        effect: what it does, for the table of ``ptq export --float``.
        apply: rewrites a graph and returns how often it did; names that are free come with it.
        opset: oldest opset that has the operators which it writes; 0 where it writes no new ones.
    """

    name: str
    effect: str
    apply: Apply
    opset: int = 0


def each_node(rewrite: Callable[[ir.Node, FreshNames], bool], *op_types: str) -> Apply:
    """Return what rewrites the nodes of these types in a graph, and counts those of which it tells so."""

    def apply(graph: ir.Graph, names: FreshNames) -> int:
        nodes = [node for node in graph if node.op_type in op_types and node.domain == ""]
        return sum(rewrite(node, names) for node in nodes)

    return apply


def run_passes(
    model: ir.Model, passes: Sequence[RewritePass], *, at_any_opset: bool = False
) -> dict[str, int]:
    """Run passes until none finds anything, and return how often each was applied, by name.

    Requires: constants are initializers of the main graph. Ensures: they still are, and nothing is left that
    no output needs. Passes whose operators the model's opset lacks run with ``at_any_opset`` alone, to see
    what a newer one would be good for.
    """
    times = {item.name: 0 for item in passes}
    opset = model.opset_imports.get("", 0)
    usable = [item for item in passes if at_any_opset or opset >= item.opset]
    for _ in range(MOST_ROUNDS):
        names = FreshNames.of(model.graph)
        found: dict[str, int] = {}
        graphs = list(every_graph(model.graph))
        for item in usable:
            found[item.name] = sum(item.apply(graph, names) for graph in graphs)
            if found[item.name]:  # It may have taken nested graphs away.
                graphs = list(every_graph(model.graph))
        if not any(found.values()):
            break
        for name, count in found.items():
            times[name] += count
        remove_unused(model)
    # A pass gives a constant to the graph that it rewrites; here all of them are the main graph's.
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    return times


# Arithmetic written as nodes, read back as a formula.
#
# Exporters write one function in many ways: ``0.5 * x * (1 + erf(x / sqrt(2)))`` associates in five, and
# halves before or after. As polynomials in x and in one nonlinear term they are all the same.


Terms = Mapping[tuple[int, int], float]
"""Coefficients by the powers of x and of the nonlinear term: 0.5 x + 2 x t is {(1, 0): 0.5, (1, 1): 2.0}."""
DEPTH = 10
HIGHEST_POWER = 4
TOLERANCE = 2e-4
"""Exporters write sqrt(2) as 1.4142; nearer than this no two functions are that differ."""
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Neg")


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
    node = made_by(value, *ARITHMETIC)
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
        <= TOLERANCE * max(abs(wanted.get(power, 0.0)), 1e-3 * largest)
        for power in powers
    )


def variables_of(value: ir.Value | None, depth: int = DEPTH) -> Iterator[ir.Value]:
    """Yield the values that arithmetic computes ``value`` from, itself first: what x may be."""
    if value is None or scalar_of(value) is not None:
        return
    yield value
    node = made_by(value, *ARITHMETIC)
    if node is not None and depth:
        for item in node.inputs:
            yield from variables_of(item, depth - 1)


def results_of(value: ir.Value, depth: int = DEPTH) -> Iterator[ir.Node]:
    """Yield the arithmetic that alone reads ``value``, and what alone reads that: what may end a formula."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or depth == 0:
        return
    node = uses[0].node
    if node.op_type in ARITHMETIC and node.domain == "":
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


# How a written-out activation function is found, and becomes the one operator it is.


def fuse_activation(matches: Callable[[ir.Node, ir.Value], Terms | None], operator: str, term: str) -> Apply:
    """Return what replaces each written-out form of an activation by its operator.

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
