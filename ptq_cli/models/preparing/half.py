"""A model that computes in float16 or bfloat16 is computed in float32, whose integer kernels there are.

Every number of theirs is one of float32, so that weights keep their values to the bit. What is computed is
rounded less often than before. Inputs and outputs keep float16, behind a Cast each: who calls the model
sees no other type. In bfloat16 nobody could give them an array, so that those become float32.
"""

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import FreshNames, every_graph, every_node

_FLOAT = ir.DataType.FLOAT
BFLOAT16 = ir.DataType.BFLOAT16
HALVES = {ir.DataType.FLOAT16: "float16", BFLOAT16: "bfloat16"}
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


def widen_half(model: ir.Model) -> str:
    """Turn what is computed in 16 bits into float32, and return the names of these types, or an empty string.

    Requires: types are inferred, functions inlined. Ensures: float16 is left in inputs and outputs of the
    main graph only, and bfloat16 nowhere. A model that only stores or passes float16, and computes in
    float32, is left as it is.
    """
    take_float32(model)
    nodes = [*every_node(model.graph)]
    found = {value.dtype for node in nodes if node.op_type != "Cast" for value in node.outputs}
    found |= {BFLOAT16} & {value.dtype for node in nodes for value in node.outputs}
    if not found & HALVES.keys():
        return ""
    graph, names = model.graph, FreshNames.of(model.graph)
    outputs = {index: value.dtype for index, value in enumerate(graph.outputs) if value.dtype in HALVES}
    _widen(_inner_values(model), every_node(graph), HALVES)
    for value in [item for item in graph.inputs if item.dtype in HALVES]:
        _cast_input(graph, value, _FLOAT, names)
    for index, dtype in outputs.items():
        _cast_output(graph, index, dtype, names)
    _drop_idle_casts(graph)
    return " and ".join(name for dtype, name in HALVES.items() if dtype in found)


def uses_bfloat16(model: ir.Model) -> bool:
    """Return whether an input, an output, a constant or a Cast of a model is in bfloat16."""
    values = [*model.graph.inputs, *model.graph.outputs, *_inner_values(model)]
    if any(BFLOAT16 in (value.dtype, value.const_value and value.const_value.dtype) for value in values):
        return True
    return any(
        attribute.value == BFLOAT16
        for node in _every_node(model)
        for name, attribute in node.attributes.items()
        if name in TYPE_ATTRIBUTES
    )


def without_bfloat16(model: ir.Model) -> ir.Model:
    """Return a copy with float32 in place of bfloat16, for checks.

    Exporters write bfloat16 for operators that ONNX defines in it later, such as Conv, or not at all.
    """
    copy = model.clone()
    values = [*copy.graph.inputs, *_inner_values(copy)]
    values += [value for function in copy.functions.values() for value in function.inputs]
    nodes = [*_every_node(copy)]
    _widen([*values, *(value for node in nodes for value in node.outputs)], nodes, (BFLOAT16,))
    return copy


def take_float32(model: ir.Model) -> None:
    """Give each input and output of bfloat16 the type float32, which arrays can have, with a Cast inside."""
    graph, names = model.graph, FreshNames.of(model.graph)
    for value in [item for item in graph.inputs if item.dtype == BFLOAT16]:
        if value.name not in graph.initializers:
            _cast_input(graph, value, BFLOAT16, names)
            value.type = ir.TensorType(_FLOAT)
    for index, value in enumerate(graph.outputs):
        if value.dtype == BFLOAT16:
            _cast_output(graph, index, _FLOAT, names)


def _every_node(model: ir.Model) -> Iterator[ir.Node]:
    yield from every_node(model.graph)
    for function in model.functions.values():
        yield from every_node(function)


def _inner_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in every_graph(model.graph):
        yield from graph.initializers.values()
        yield from graph.inputs if graph is not model.graph else ()
    for node in every_node(model.graph):
        yield from node.outputs


def _widen(values: Iterable[ir.Value], nodes: Iterable[ir.Node], narrow: Collection[ir.DataType]) -> None:
    for value in values:
        if value.dtype in narrow:
            value.type = ir.TensorType(_FLOAT)
        if value.const_value is not None and value.const_value.dtype in narrow:
            value.const_value = _widened(value.const_value)
    for node in nodes:
        _widen_attributes(node, narrow)


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return moved_tensor(tensor, lambda array: array.astype(np.float32), tensor.name or "")


def _widen_attributes(node: ir.Node, narrow: Collection[ir.DataType]) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in narrow:
            node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
        elif name in TYPE_ATTRIBUTES and node.domain == "" and attribute.value in narrow:
            node.attributes[name] = ir.AttrInt64(name, _FLOAT)


def _cast_input(graph: ir.Graph, value: ir.Value, dtype: ir.DataType, names: FreshNames) -> None:
    cast = _cast(value, dtype, f"{value.name}/Cast", names)
    cast.outputs[0].name = names.claim(f"{value.name}.float")
    uses = list(value.uses())
    for node, index in uses:
        if node is not cast:
            node.replace_input_with(index, cast.outputs[0])
    graph.insert_before(next(iter(graph)), [cast])


def _cast_output(graph: ir.Graph, index: int, dtype: ir.DataType, names: FreshNames) -> None:
    value = graph.outputs[index]
    name = value.name or ""
    cast = _cast(value, dtype, f"{name}/Cast", names)
    value.name = names.claim(f"{name}.float")
    cast.outputs[0].name = name
    graph.append(cast)
    graph.outputs[index] = cast.outputs[0]


def _cast(value: ir.Value, dtype: ir.DataType, name: str, names: FreshNames) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(dtype)}, name=names.claim(name))
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), value.shape
    return node


def _drop_idle_casts(graph: ir.Graph) -> None:
    for node in [item for item in graph if item.op_type == "Cast" and item.domain == ""]:
        source, output = node.inputs[0], node.outputs[0]
        if source is None or source.dtype != output.dtype:
            continue
        if output.is_graph_output() and (source.is_graph_input() or source.is_graph_output()):
            continue
        # ``Interface.restore`` gives an output its name again.
        output.replace_all_uses_with(source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
