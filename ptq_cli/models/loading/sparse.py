"""Sparse constants become dense ones: ONNX's checker, its shape inference and onnx_ir know no others."""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.tensors import Array

Places = npt.NDArray[np.int64]

LARGEST_DENSE = 2**28
"""Bytes of one dense constant: a file of a few bytes may promise any shape."""


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
