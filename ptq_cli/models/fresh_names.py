"""Names that nothing else in a graph has."""

from typing import Self

import onnx_ir as ir

RESULT = ".output"
"""What a node's result is called behind the node's name."""


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
