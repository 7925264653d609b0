"""Inputs and outputs keep their names, whatever the passes made of the values behind them.

Two outputs may have become one value: equal operators are merged, and an Identity goes. onnx_ir then puts
an Identity before one of them, under a name that it makes up; and it renames an input that is an output too.
Whoever calls the model asks by the names that the file has.
"""

from dataclasses import dataclass
from typing import Self

import onnx_ir as ir


@dataclass(frozen=True)
class Interface:
    """What a caller sees.

    Attributes:
        inputs: names of the inputs that are not initializers, in order.
        outputs: names of the outputs, in order; one may be there twice.
        shapes: what the model says of the outputs' shapes, which inference does not always find again.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[ir.Shape | None, ...]

    @classmethod
    def of(cls, graph: ir.Graph) -> Self:
        """Return the interface of a model's main graph."""
        inputs = (value.name or "" for value in graph.inputs if value.name not in graph.initializers)
        shapes = (value.shape.copy() if value.shape is not None else None for value in graph.outputs)
        return cls(tuple(inputs), tuple(value.name or "" for value in graph.outputs), tuple(shapes))

    def restore(self, graph: ir.Graph) -> None:
        """Give inputs and outputs their names again, and outputs the shapes that they lost.

        Requires: as many inputs and outputs as there were, none of the inputs an initializer.

        Edge case:
            An output of the name of an input is that input, and one that was there before is the same value.
        """
        for value, name in zip(graph.inputs, self.inputs, strict=True):
            if value.name != name:
                value.name = name
        given = dict(zip(self.inputs, graph.inputs, strict=True))
        for index, name in enumerate(self.outputs):
            value = graph.outputs[index]
            wanted = given.setdefault(name, value)
            if wanted is not value:
                _hand_out(graph, index, wanted)
            elif value.name != name:
                value.name = name
        for value, shape in zip(graph.outputs, self.shapes, strict=True):
            if value.shape is None and shape is not None:
                value.shape = shape.copy()


def _hand_out(graph: ir.Graph, index: int, value: ir.Value) -> None:
    """Make a value an output itself, in place of the Identity of it that is one."""
    alias = graph.outputs[index]
    graph.outputs[index] = value
    node = alias.producer()
    alias.replace_all_uses_with(value)
    if node is not None and not alias.is_graph_output():
        graph.remove(node, safe=True)
