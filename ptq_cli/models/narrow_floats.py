"""Float16 for all that is not quantized, for runtimes that compute in the types of the file.

TensorRT calls such a network strongly typed: it takes each type from the graph and never chooses a faster
one.
The opposite, for models that arrive in float16, is ``preparing/half.py``.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.arithmetic import to_half
from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import FreshNames, every_graph, every_node
from ptq_cli.models.opset import opset_of
from ptq_cli.models.pair_operators import is_dynamic_quantize, is_in_two_levels

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
HALF_TENSOR = "tensor(float16)"
FILLED = "ConstantOfShape"


def narrow_floats(model: ir.Model) -> None:
    """Turn what is computed in float32 into float16, between inputs and outputs that keep their type.

    Requires: types of values are known; no functions. Ensures: an operator that ONNX does not define for
    float16, and an input that it wants in float32, such as the scales of a Resize, has a Cast on each side
    instead; no value or constant of the other operators is float32.

    A constant beyond float16, such as that of an attention mask, becomes the largest number there is; one
    that would become 0, such as an epsilon, becomes the smallest.
    """
    narrowing = _Narrowing(model)
    narrowing.inputs()
    narrowing.constants()
    for node in list(every_node(model.graph)):
        narrowing.node(node)
    narrowing.outputs()


class _Narrowing:
    """One model on its way to float16."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._graph = model, model.graph
        self._names = FreshNames.of(model.graph)
        self._opset = opset_of(model)
        self._wide: dict[tuple[ir.Value, ir.Graph], ir.Value] = {}
        self._casts: set[ir.Node] = set()

    def inputs(self) -> None:
        """Cast each float32 input of the model; inputs of nested graphs only change their type."""
        for value in [item for item in self._graph.inputs if item.dtype == _FLOAT]:
            uses = list(value.uses())
            if not uses:
                continue
            cast = self._cast(value, _HALF, f"{value.name}/Cast")
            cast.outputs[0].name = self._names.claim(f"{value.name}.float16")
            for node, index in uses:
                node.replace_input_with(index, cast.outputs[0])
            self._graph.insert_before(next(iter(self._graph)), [cast])
        for graph in every_graph(self._model.graph):
            for value in graph.inputs if graph is not self._graph else ():
                if value.dtype == _FLOAT:
                    value.type = ir.TensorType(_HALF)

    def constants(self) -> None:
        """Round constants; one that some operator needs in float32 stays, beside its float16 copy."""
        for graph in every_graph(self._model.graph):
            for name, value in list(graph.initializers.items()):
                tensor = value.const_value
                if tensor is None or tensor.dtype != _FLOAT or value.is_graph_output():
                    continue
                kept = [use for use in value.uses() if not self._takes_half(use.node, use.idx)]
                if not kept:
                    value.const_value = _narrowed(tensor, name)
                    value.type = ir.TensorType(_HALF)
                    continue
                others = [use for use in value.uses() if use not in kept]
                copy = self._copy(graph, tensor, name) if others else value
                for node, index in others:
                    node.replace_input_with(index, copy)

    def _copy(self, graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        claimed = self._names.claim(f"{name}.float16")
        narrow = _narrowed(tensor, claimed)
        value = ir.Value(
            name=claimed, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(_HALF), const_value=narrow
        )
        graph.register_initializer(value)
        return value

    def node(self, node: ir.Node) -> None:
        """Give a node float16, or float32 inputs and float16 readers where it is not defined for it."""
        if node in self._casts:
            return
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == _HALF and not self._takes_half(node, index):
                node.replace_input_with(index, self._widened(node, value))
        for index, output in enumerate(node.outputs):
            if output.dtype != _FLOAT:
                continue
            if self._gives_half(node, index):
                output.type = ir.TensorType(_HALF)
            else:
                self._narrow_behind(node, output)
        _narrow_attributes(node)

    def _widened(self, node: ir.Node, value: ir.Value) -> ir.Value:
        graph = _graph_of(node)
        if (value, graph) not in self._wide:
            cast = self._cast(value, _FLOAT, f"{value.name}/Cast")
            graph.insert_before(node, [cast])
            self._wide[value, graph] = cast.outputs[0]
        return self._wide[value, graph]

    def _narrow_behind(self, node: ir.Node, output: ir.Value) -> None:
        graph = _graph_of(node)
        uses = [use for use in output.uses() if self._takes_half(use.node, use.idx)]
        inner = graph is not self._graph and output.is_graph_output()
        if not uses and not inner:
            return
        cast = self._cast(output, _HALF, f"{output.name}/Cast")
        graph.insert_after(node, [cast])
        for reader, index in uses:
            reader.replace_input_with(index, cast.outputs[0])
        if inner:
            graph.outputs[:] = [cast.outputs[0] if item is output else item for item in graph.outputs]

    def outputs(self) -> None:
        """Cast each output of the model that has become float16 back, under its own name."""
        for index, value in enumerate(list(self._graph.outputs)):
            if value.dtype != _HALF or value.is_graph_input():
                continue
            name = value.name or ""
            cast = self._cast(value, _FLOAT, f"{name}/Cast")
            value.name = self._names.claim(f"{name}.float16")
            cast.outputs[0].name = name
            self._graph.append(cast)
            self._graph.outputs[index] = cast.outputs[0]

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        node = ir.node("Cast", [value], {"to": int(dtype)}, name=self._names.claim(name))
        output = node.outputs[0]
        output.name = self._names.claim(f"{node.name}.output")
        output.type, output.shape = ir.TensorType(dtype), value.shape
        self._casts.add(node)
        return node

    def _takes_half(self, node: ir.Node, index: int) -> bool:
        if node in self._casts or is_dynamic_quantize(node):
            return node in self._casts or index == 0  # Its scale is float32.
        schema = self._schema(node)
        if schema is None or is_in_two_levels(node):
            return False
        return HALF_TENSOR in _formal(schema.inputs, index).types

    def _gives_half(self, node: ir.Node, index: int) -> bool:
        schema = self._schema(node)
        if schema is None or is_in_two_levels(node):
            return False
        if HALF_TENSOR not in _formal(schema.outputs, index).types:
            return False
        # Of its type alone the attribute decides, or a float32 input that shares the type.
        wide = [
            number
            for number, value in enumerate(node.inputs)
            if value is not None and value.dtype == _FLOAT and not self._takes_half(node, number)
        ]
        own = _formal(schema.outputs, index).type_str
        return all(_formal(schema.inputs, number).type_str != own for number in wide)

    def _schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        if node.domain not in ("", "ai.onnx"):
            return None
        return onnx.defs.get_schema(node.op_type, self._opset)


def _formal(
    formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int
) -> onnx.defs.OpSchema.FormalParameter:
    return formals[min(index, len(formals) - 1)]  # The last one may stand for many.


def _graph_of(node: ir.Node) -> ir.Graph:
    if not isinstance(node.graph, ir.Graph):
        raise TypeError("a prepared model has no functions")
    return node.graph


def _narrow_attributes(node: ir.Node) -> None:
    if node.op_type == "Cast" and node.outputs[0].dtype == _HALF:
        node.attributes["to"] = ir.AttrInt64("to", _HALF)
    elif "dtype" in node.attributes and node.outputs[0].dtype == _HALF:
        node.attributes["dtype"] = ir.AttrInt64("dtype", _HALF)
    elif node.op_type == FILLED and node.outputs[0].dtype == _HALF:
        given = node.attributes.get("value")
        array = given.as_tensor().numpy() if given is not None else np.zeros(1, np.float32)
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(to_half(array)))


def _narrowed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return moved_tensor(tensor, to_half, name)
