"""A model that computes in float16 or bfloat16 is computed in float32, whose integer kernels there are.

Every number of theirs is one of float32, so that weights keep their values to the bit. What is computed is
rounded less often than before. Inputs and outputs keep their type, behind a Cast each: who calls the
model sees no other.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import FreshNames

FLOAT = ir.DataType.FLOAT
HALVES = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


def widen_half(model: ir.Model) -> str:
    """Turn what is computed in 16 bits into float32, and return the names of these types, or an empty string.

    Requires: types are inferred, functions inlined. Ensures: such types are left in inputs and outputs of the
    main graph only. A model that only stores or passes them, and computes in float32, is left as it is.
    """
    computing = (node for node in model.graph.all_nodes() if node.op_type != "Cast")
    found = {value.dtype for node in computing for value in node.outputs}
    if not found & HALVES.keys():
        return ""
    graph, names = model.graph, FreshNames.of(model.graph)
    outputs = {index: value.dtype for index, value in enumerate(graph.outputs) if value.dtype in HALVES}
    for value in _inner_values(model):
        if value.dtype in HALVES:
            value.type = ir.TensorType(FLOAT)
        if value.const_value is not None and value.const_value.dtype in HALVES:
            value.const_value = _widened(value.const_value)
    for node in graph.all_nodes():
        _widen_attributes(node)
    for value in [item for item in graph.inputs if item.dtype in HALVES]:
        _cast_input(graph, value, names)
    for index, dtype in outputs.items():
        _cast_output(graph, index, dtype, names)
    _drop_idle_casts(graph)
    return " and ".join(name for dtype, name in HALVES.items() if dtype in found)


def _inner_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()
        yield from graph.inputs if graph is not model.graph else ()
    for node in model.graph.all_nodes():
        yield from node.outputs


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return moved_tensor(tensor, lambda array: array.astype(np.float32), tensor.name or "")


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in HALVES:
            node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
        elif name in TYPE_ATTRIBUTES and node.domain == "" and attribute.value in HALVES:
            node.attributes[name] = ir.AttrInt64(name, FLOAT)


def _cast_input(graph: ir.Graph, value: ir.Value, names: FreshNames) -> None:
    wide = _cast(value, FLOAT, f"{value.name}/Cast", names)
    wide.outputs[0].name = names.claim(f"{value.name}.float")
    uses = list(value.uses())
    for node, index in uses:
        if node is not wide:
            node.replace_input_with(index, wide.outputs[0])
    graph.insert_before(next(iter(graph)), [wide])


def _cast_output(graph: ir.Graph, index: int, dtype: ir.DataType, names: FreshNames) -> None:
    value = graph.outputs[index]
    name = value.name or ""
    narrow = _cast(value, dtype, f"{name}/Cast", names)
    value.name = names.claim(f"{name}.float")
    narrow.outputs[0].name = name
    graph.append(narrow)
    graph.outputs[index] = narrow.outputs[0]


def _cast(value: ir.Value, dtype: ir.DataType, name: str, names: FreshNames) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(dtype)}, name=names.claim(name))
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), value.shape
    return node


def _drop_idle_casts(graph: ir.Graph) -> None:
    for node in [item for item in graph if item.op_type == "Cast" and item.domain == ""]:
        source, output = node.inputs[0], node.outputs[0]
        if source is None or source.dtype != output.dtype or output.is_graph_output():
            continue
        output.replace_all_uses_with(source)
        graph.remove(node, safe=True)
