"""Names that nothing else in a graph has."""

import hashlib
from collections import Counter
from collections.abc import Container
from typing import Self

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import every_value, labeled_graphs

RESULT = ".output"
"""What a node's result is called behind the node's name."""


LONGEST = 48
"""Of a name that others are made of. Exporters write names of several hundred characters."""
DIGEST = 8


def short_name(name: str) -> str:
    """Return a name, or its beginning with a digest if it is very long.

    A pair of QuantizeLinear and DequantizeLinear repeats the name of its tensor a dozen times.

    Example:
        >>> short_name("conv1"), len(short_name("model/block/" * 40))
        ('conv1', 48)
    """
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST]
    return f"{name[: LONGEST - DIGEST - 1]}~{digest}"


class FreshNames:
    """Hands out names that no value of a model has.

    A layer may well have a parameter called ``scale``: a constant that took its name would take its place.

    Example:
        >>> names = FreshNames({"fc.scale"})
        >>> names.claim("fc.scale"), names.claim("fc.zero_point")
        ('fc.scale_2', 'fc.zero_point')
        >>> FreshNames({"x/QuantizeLinear.output"}).claim("x/QuantizeLinear")
        'x/QuantizeLinear_2'
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)

    @classmethod
    def of(cls, graph: ir.Graph) -> Self:
        """Return names that are free in a graph and in the graphs nested in it."""
        nodes = list(graph.all_nodes())
        values = [value for node in nodes for value in (*node.outputs, *node.inputs) if value is not None]
        values += [*graph.inputs, *graph.initializers.values()]
        values += [value for inner in graph.subgraphs() for value in inner.inputs]
        return cls({value.name or "" for value in values} | {node.name or "" for node in nodes})

    def claim(self, wanted: str) -> str:
        """Return ``wanted``, or with a number behind it where that is taken, or a node's result would be."""
        name, count = wanted, 1
        while name in self._taken or f"{name}{RESULT}" in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def tell_apart(graph: ir.Graph) -> None:
    """Give nodes and values of nested graphs names of their own where two branches use the same ones.

    Ensures: names of the main graph, and those that are there once, are as they were.

    Example:
        >>> import onnx
        >>> text = '''<ir_version: 10, opset_import: ["": 17]> g (float[n] x, bool c) => (float[n] y) {
        ...     [gate] y = If(c) <then_branch = t () => (float[n] r) { [act] r = Neg(x) },
        ...                       else_branch = e () => (float[n] r) { [act] r = Abs(x) }> }'''
        >>> model = ir.from_proto(onnx.parser.parse_model(text))
        >>> tell_apart(model.graph)
        >>> [(node.name, node.outputs[0].name) for node in model.graph.all_nodes()][1:]
        [('gate/then_branch/act', 'gate/then_branch/r'), ('gate/else_branch/act', 'gate/else_branch/r')]
    """
    nodes = Counter(node.name for node in graph.all_nodes())
    values = Counter(value.name for value in every_value(graph))
    repeated = {name for name, count in [*nodes.items(), *values.items()] if name and count > 1}
    if repeated:
        _tell_apart(graph, repeated, FreshNames.of(graph))


def _tell_apart(graph: ir.Graph, repeated: Container[str], names: FreshNames) -> None:
    for owner in graph:
        for label, inner in labeled_graphs(owner).items():
            path = f"{owner.name}/{label}/"
            for node in inner:
                if node.name in repeated:
                    node.name = names.claim(f"{path}{node.name}")
            for value in [*inner.inputs, *(value for node in inner for value in node.outputs)]:
                if value.name in repeated:
                    value.name = names.claim(f"{path}{value.name}")
            _tell_apart(inner, repeated, names)
