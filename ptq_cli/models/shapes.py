"""Shapes and types as ONNX infers them, and the tables whose rows a model indexes: embeddings, positions."""

import contextlib
import logging
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, labeled_graphs

LARGE_BYTES = 1000  # inference looks into small constants (axes, sizes), and never into larger ones
LARGE = 1024  # elements, for the same reason in a converter
_Tensors = dict[str, ir.TensorProtocol]


def infer_shapes(model: ir.Model, *, strict: bool = True) -> None:
    """Give each computed value the shape and type that ONNX infers; where it infers none, they stay.

    A model that cannot be inferred stays as it is. Without ``strict`` one node that cannot be, such as one
    that could never run, does not stop all others.

    onnx_ir's ``ShapeInferencePass`` does the same, and builds a second model of the result to read it.
    """
    with _constants_as_inputs(model.graph):
        proto = ir.to_proto(model)
    try:
        proto = onnx.shape_inference.infer_shapes(
            proto, check_type=strict, strict_mode=strict, data_prop=True
        )
    except Exception:  # C++ raises of many kinds; what is wrong, the checker says.
        logging.getLogger(__name__).debug("the shapes of the model cannot be inferred", exc_info=True)
        return
    _take(model.graph, proto.graph)


def all_known(graph: ir.Graph) -> bool:
    """Tell whether type and size of all that a graph computes are known: inference would find nothing."""
    return all(
        value.dtype is not None and value.shape is not None and value.shape.is_static()
        for node in every_node(graph)
        for value in node.outputs
    )


@contextlib.contextmanager
def _constants_as_inputs(graph: ir.Graph) -> Iterator[None]:
    """Feed what is constant inside the block; the large ones are the last of the constants afterwards."""
    inputs, constants = list(graph.inputs), list(graph.initializers.values())
    tensors = [value.const_value for value in constants]
    fed = set(inputs)
    for value, tensor in zip(constants, tensors, strict=True):
        if tensor is not None:
            value.shape = value.shape if value.shape is not None else ir.Shape(tensor.shape.numpy())
            value.dtype = value.dtype or tensor.dtype
        if value not in fed:
            graph.inputs.append(value)
        if tensor is None or tensor.nbytes > LARGE_BYTES:
            del graph.initializers[value.name or ""]
            value.const_value = None
    try:
        yield
    finally:
        for value, tensor in zip(constants, tensors, strict=True):
            value.const_value = tensor
            if not value.is_initializer():
                graph.initializers.add(value)
        graph.inputs.clear()
        graph.inputs.extend(inputs)


def _take(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    infos = (*proto.input, *proto.value_info, *proto.output)
    types = {info.name: info.type for info in infos}
    for value in (*graph.inputs, *graph.initializers.values()):
        _take_type(value, types)
    for node, found in zip(graph, proto.node, strict=True):
        for value in node.outputs:
            _take_type(value, types)
        if node.attributes and (inner := labeled_graphs(node)):
            protos = {item.name: item for item in found.attribute}
            for label, nested in inner.items():
                name, _, index = label.partition(".")
                attribute = protos[name]
                _take(nested, attribute.graphs[int(index)] if index else attribute.g)


def _take_type(value: ir.Value, types: Mapping[str, onnx.TypeProto]) -> None:
    found = types.get(value.name or "")
    if found is None:
        return
    if not found.HasField("tensor_type"):
        shape = ir.serde.deserialize_type_proto_for_shape(found)
        value.shape = value.shape if shape is None else shape
        value.type = ir.serde.deserialize_type_proto_for_type(found) or value.type
        return
    tensor = found.tensor_type
    if tensor.elem_type and (value.dtype is None or value.dtype != tensor.elem_type):
        value.dtype = ir.DataType(tensor.elem_type)
    if tensor.HasField("shape"):
        sizes = tuple(_size(dimension) for dimension in tensor.shape.dim)
        if value.shape is None or value.shape.dims != sizes:
            value.shape = ir.Shape(sizes)


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    kind = dimension.WhichOneof("value")
    return getattr(dimension, kind) if kind is not None else None


def set_aside(graph: ir.Graph) -> _Tensors:
    """Turn large constants of a graph into inputs, and return their tensors by name."""
    large = {}
    inputs = set(graph.inputs)
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.size < LARGE or value in inputs or value.is_graph_output():
            continue
        del graph.initializers[name]
        value.const_value = None
        value.dtype, value.shape = tensor.dtype, ir.Shape(tensor.shape.numpy())
        graph.inputs.append(value)
        large[name] = tensor
    return large


def put_back(graph: ir.Graph, large: _Tensors) -> None:
    """Turn inputs of a graph, or of a copy of it, into the constants again that ``set_aside`` returned."""
    for value in [item for item in graph.inputs if item.name in large]:
        graph.inputs.remove(value)
        value.const_value = large[value.name or ""]
        graph.register_initializer(value)


@contextlib.contextmanager
def large_constants_aside(graph: ir.Graph) -> Iterator[None]:
    """Keep large constants of a graph aside inside the block; they are in another order afterwards."""
    large = set_aside(graph)
    try:
        yield
    finally:
        put_back(graph, large)


_COUNTING = ("Range", "CumSum")  # operators that make positions of a length or a mask
_SAME_VALUES = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze")


def rows_of_tables(value: ir.Value) -> int | None:
    """Return the rows of the smallest constant table that a Gather reads at the values of an input.

    None if there is no such table, or its size is not known.
    """
    found = list(_rows(value, set()))
    return min(found) if found else None


def _rows(value: ir.Value, seen: set[int]) -> list[int]:
    if id(value) in seen:
        return []
    seen.add(id(value))
    found: list[int] = []
    for node, index in value.uses():
        if node.op_type in _SAME_VALUES and index == 0:
            found += _rows(node.outputs[0], seen)
        elif node.op_type == "Gather" and index == 1:
            table, axis = node.inputs[0], node.attributes.get("axis")
            constant = table.const_value if table is not None else None
            rows = constant.shape[0] if constant is not None and len(constant.shape) else None
            if isinstance(rows, int) and (axis is None or axis.as_int() == 0):
                found.append(rows)
    return found


def longest_sequence(graph: ir.Graph) -> int | None:
    """Return the rows of the smallest constant table that a Gather reads at places which the model counts.

    Such a table holds positions, and a longer sequence does not run. Places are counted if they come from a
    Range or a CumSum, or from the first numbers of a constant 0, 1, 2, … None if there is no such table; a
    table that is read at an input's values is not one.
    """
    found = []
    for node in graph:
        table = node.inputs[0].const_value if node.op_type == "Gather" and node.inputs[0] else None
        axis = node.attributes.get("axis")
        if table is None or len(table.shape) != 2 or (axis is not None and axis.as_int() != 0):
            continue
        most = _counted(node.inputs[1])
        if most is not None:
            found.append(min(most, *table.shape.numpy()[:1]))
    return min(found) if found else None


def _counted(places: ir.Value | None) -> int | None:
    """Return how many places are counted at most; None if they are not counted."""
    waiting, seen, most = [places], set[int](), None
    while waiting:
        value = waiting.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        producer = value.producer()
        if producer is None:
            if value.const_value is None:
                return None
            if (numbers := _first_numbers(value.const_value)) is not None:
                most = numbers
        elif producer.op_type in _COUNTING:
            most = most or np.iinfo(np.int64).max
        elif producer.op_type != "Shape":
            waiting += producer.inputs
    return most


def _first_numbers(constant: ir.TensorProtocol) -> int | None:
    """Return the length of a constant 0, 1, 2, …; None of another one."""
    if constant.size < 2 or not constant.dtype.is_integer():
        return None
    values = constant.numpy().reshape(-1)
    return int(constant.size) if np.array_equal(values, np.arange(constant.size)) else None


SAID = ("out of data bounds", "index out of range", "indices element out of")
INDEX_HINT = (
    "an index in the data is larger than the model's table: check that the token ids come from the "
    "tokenizer that the model was trained with"
)


def is_index_out_of_range(said: str) -> bool:
    """Tell whether ONNX Runtime or PyTorch complain of an index beyond a table."""
    return any(words in said for words in SAID)
