"""Inputs and outputs keep their names, whatever the passes made of the values behind them.

Two outputs may have become one value: equal operators are merged, and an Identity goes. onnx_ir then puts
an Identity before one of them, under a name that it makes up; and it renames an input that is an output too.
Whoever calls the model asks by the names that the file has.
"""

from dataclasses import dataclass
from typing import Self

import onnx_ir as ir

from ptq_cli.models.preparing.declared_shapes import rename_sizes


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What a caller sees.

    Attributes:
        inputs: names of the inputs that are not initializers, in order.
        outputs: names of the outputs, in order; one may be there twice.
        input_shapes: what the model says of the inputs' shapes.
        shapes: what it says of the outputs' shapes, which inference does not always find again.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_shapes: tuple[ir.Shape | None, ...]
    shapes: tuple[ir.Shape | None, ...]

    @classmethod
    def of(cls, graph: ir.Graph) -> Self:
        """Return the interface of a model's main graph."""
        inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        return cls(
            inputs=tuple(value.name or "" for value in inputs),
            outputs=tuple(value.name or "" for value in graph.outputs),
            input_shapes=tuple(_copied(value.shape) for value in inputs),
            shapes=tuple(_copied(value.shape) for value in graph.outputs),
        )

    def name_sizes_apart(self, graph: ir.Graph) -> None:
        """Give each symbolic size of an input a name of its own until ``restore``.

        Two sizes of one name need not be equal: some exporters write ``?`` for all.
        """
        inputs = {value.name: value for value in graph.inputs}
        for index, (name, shape) in enumerate(zip(self.inputs, self.input_shapes, strict=True)):
            if shape is not None:
                sizes = (
                    size if isinstance(size, int) else _apart(index, axis) for axis, size in enumerate(shape)
                )
                inputs[name].shape = ir.Shape(sizes)

    def restore(self, model: ir.Model) -> bool:
        """Give inputs and outputs their names again, and the shapes that inference does not contradict.

        Requires: as many inputs and outputs as there were, none of the inputs an initializer.

        Edge case:
            An output of the name of an input is that input, and one that was there before is the same value.

        Returns:
            Whether outputs have sizes that only the file tells: they may be wrong.
        """
        graph = model.graph
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
        self._restore_sizes(model)
        names = {
            size.value for shape in self.input_shapes for size in shape or () if not isinstance(size, int)
        }
        told = [
            _declare(value, shape, names)
            for value, shape in zip(graph.outputs, self.shapes, strict=True)
            if shape is not None and not value.is_graph_input()
        ]
        return any(told)

    def _restore_sizes(self, model: ir.Model) -> None:
        sizes = {
            _apart(index, axis): None if isinstance(size, int) else size.value
            for index, shape in enumerate(self.input_shapes)
            for axis, size in enumerate(shape or ())
        }
        rename_sizes(model, lambda name: sizes.get(name, name))
        for value, shape in zip(model.graph.inputs, self.input_shapes, strict=True):
            value.shape = _copied(shape)


def _apart(index: int, axis: int) -> str:
    return f"size_of_input_{index}_axis_{axis}"


def _copied(shape: ir.Shape | None) -> ir.Shape | None:
    return shape.copy() if shape is not None else None


def _declare(value: ir.Value, declared: ir.Shape, inputs: set[str | None]) -> bool:
    """Complete an output's shape by what is declared; tell whether sizes or the rank are from there alone."""
    found = value.shape
    if found is None:
        value.shape = declared.copy()
        return True
    if len(found) != len(declared):
        return False
    sizes = [
        inferred if isinstance(inferred, int) or inferred.value in inputs - {None} else said
        for inferred, said in zip(found, declared, strict=True)
    ]
    value.shape = ir.Shape(sizes)
    return any(isinstance(size, int) and size != old for size, old in zip(sizes, found, strict=True))


def _hand_out(graph: ir.Graph, index: int, value: ir.Value) -> None:
    """Make a value an output itself, in place of the Identity of it that is one."""
    alias = graph.outputs[index]
    graph.outputs[index] = value
    node = alias.producer()
    alias.replace_all_uses_with(value)
    if node is not None and not alias.is_graph_output():
        graph.remove(node, safe=True)
