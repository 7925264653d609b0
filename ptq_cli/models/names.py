"""Names that nothing else in a graph has."""

import hashlib
from collections import Counter
from collections.abc import Container
from typing import Self

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, every_value, labeled_graphs

RESULT = ".output"  # suffix of a node's result, behind the node's name
LONGEST = 48  # characters of a name that others are made of; exporters write hundreds
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
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)

    @classmethod
    def of(cls, graph: ir.Graph) -> Self:
        """Return names that are free in a graph and in the graphs nested in it."""
        nodes = list(every_node(graph))
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
    """
    nodes = Counter(node.name for node in every_node(graph))
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
