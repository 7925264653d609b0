"""Repairs of a file that ONNX Runtime runs, and ONNX's checker, its shape inference or onnx_ir do not take.

Sparse constants become dense. Declared shapes of results go where the file is checked: ONNX Runtime computes
what the nodes say, and only warns of them. A negative size, which some exporters write for any, goes too:
ONNX's inference computes with it, and a Slice of it ends the process.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import every_graph, every_node
from ptq_cli.models.opset import DEFAULT_DOMAIN

Places = npt.NDArray[np.int64]
LARGEST_DENSE = 2**28  # bytes of one dense constant: a small file may promise any shape


def make_dense(proto: onnx.ModelProto, what: str) -> bool:
    """Write each sparse constant as a dense one, and tell whether there was any."""
    found = False
    for graph in graphs_of(proto.graph):
        for tensor in graph.sparse_initializer:
            graph.initializer.append(_dense(tensor, what))
            found = True
        del graph.sparse_initializer[:]
        found |= _make_constants_dense(graph.node, what)
    for function in proto.functions:
        found |= _make_constants_dense(function.node, what)
    return found


def _make_constants_dense(nodes: Iterable[onnx.NodeProto], what: str) -> bool:
    attributes = [item for node in nodes if node.op_type == "Constant" for item in node.attribute]
    sparse = [item for item in attributes if item.type == onnx.AttributeProto.SPARSE_TENSOR]
    for attribute in sparse:
        dense = _dense(attribute.sparse_tensor, what)
        attribute.ClearField("sparse_tensor")
        attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
        attribute.t.CopyFrom(dense)
    return bool(sparse)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those nested in it."""
    yield graph
    for attribute in (item for node in graph.node for item in node.attribute):
        for nested in (attribute.g, *attribute.graphs):
            if nested.ListFields():
                yield from graphs_of(nested)


def _dense(tensor: onnx.SparseTensorProto, what: str) -> onnx.TensorProto:
    name, shape = tensor.values.name, tuple(tensor.dims)
    values, indices = _array(tensor.values), _array(tensor.indices)
    places = indices.astype(np.int64) if indices is not None and indices.dtype.kind == "i" else None
    if values is None or places is None or not _fits(values, places, shape):
        raise InvalidOnnxError(
            f"model '{what}': the values and places of the sparse constant '{name}' do not fit",
            hint="copy or export it again",
        )
    if math.prod(shape) * values.itemsize > LARGEST_DENSE:
        raise InvalidOnnxError(
            f"model '{what}': the sparse constant '{name}' of shape {list(shape)} is too large when dense",
            hint="export it with dense constants",
        )
    array = np.zeros(shape, values.dtype)
    array[np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)] = values
    return numpy_helper.from_array(array, name)


def _array(tensor: onnx.TensorProto) -> Array | None:
    """Return a tensor's array, or None where its bytes are elsewhere or not those of its shape."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return None


def _fits(values: Array, places: Places, shape: tuple[int, ...]) -> bool:
    if places.ndim not in (1, 2) or values.shape != places.shape[:1]:
        return False
    if any(size < 0 for size in shape) or (places.ndim == 2 and places.shape[1] != len(shape)):
        return False
    ends = np.array(shape if places.ndim == 2 else min(math.prod(shape), np.iinfo(np.int64).max))
    return bool(np.all((places >= 0) & (places < ends)))


def clear_declared_shapes(proto: onnx.ModelProto) -> None:
    """Leave out the declared shapes of all computed values.

    Inputs keep theirs: ONNX Runtime takes no others. Types stay too, because a wrong one is an error.
    """
    infos = [info for function in proto.functions for info in function.value_info]
    for graph in graphs_of(proto.graph):
        constants = {tensor.name for tensor in graph.initializer}
        infos += [info for info in (*graph.output, *graph.value_info) if info.name not in constants]
    for info in infos:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")


def give_outputs_types(proto: onnx.ModelProto) -> bool:
    """Give each output of the main graph without a type the one that is inferred; tell if there was any.

    Where nothing can be inferred, the output stays without a type, which the checker refuses.
    """
    untyped = [output for output in proto.graph.output if _is_untyped(output)]
    if not untyped:
        return False
    for output in untyped:
        output.ClearField("type")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return False  # The checker says what is wrong.
    graph = inferred.graph
    infos = (*graph.value_info, *graph.output)
    found = {info.name: info.type for info in infos if info.HasField("type")}
    for output in untyped:
        if output.name in found:
            output.type.CopyFrom(found[output.name])
    return True


def _is_untyped(output: onnx.ValueInfoProto) -> bool:
    kind = output.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and not output.type.tensor_type.elem_type)


def shorten_default_domain(proto: onnx.ModelProto) -> bool:
    """Write ``ai.onnx`` as the empty domain in each node, which the checker wants; tell if there was any."""
    nodes = [node for graph in graphs_of(proto.graph) for node in graph.node]
    nodes += [node for function in proto.functions for node in function.node]
    found = [node for node in nodes if node.domain == DEFAULT_DOMAIN]
    for node in found:
        node.domain = ""
    return bool(found)


def forget_negative_sizes(proto: onnx.ModelProto) -> bool:
    """Leave out each negative size that a model says of its tensors, and tell whether there was any."""
    found = False
    for dimension in _dimensions(proto):
        if dimension.dim_value < 0:
            dimension.ClearField("dim_value")
            found = True
    return found


def forget_sizes_of_values(model: ir.Model) -> None:
    """Do the same to a model that is loaded already, beside its external data."""
    values = [value for graph in every_graph(model.graph) for value in graph.inputs]
    values += [value for node in every_node(model.graph) for value in node.outputs]
    for value in values:
        sizes = list(value.shape or ())
        if any(isinstance(size, int) and size < 0 for size in sizes):
            value.shape = ir.Shape([None if isinstance(size, int) and size < 0 else size for size in sizes])


def _dimensions(proto: onnx.ModelProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    graphs = [*graphs_of(proto.graph)]
    infos = [info for graph in graphs for info in (*graph.input, *graph.output, *graph.value_info)]
    infos += [info for function in proto.functions for info in function.value_info]
    for info in infos:
        yield from info.type.tensor_type.shape.dim
