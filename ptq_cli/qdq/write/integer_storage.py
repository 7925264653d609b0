"""The integers of a weight in a graph: as they are, two in a byte, or as indices into a table."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.files.stored import lies_apart
from ptq_cli.models.graph_reading import FreshNames, short_name
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    add_outside,
    add_packed,
    make_add,
    make_cast,
    make_gather,
    packed_type,
    put_in_front,
)
from ptq_cli.qdq.write.weight_quantizer import BYTE, HALF_BYTE, StoredWeight

PACKED_OPSET = 21
"""The first in which Cast reads INT4 and UINT4."""


def add_integers(graph: ir.Graph, name: str, array: Array, bits: int) -> ir.Value:
    """Add a constant of integers of so many bits: two or four in a byte where these are few."""
    return add_packed(graph, name, array, bits) if bits <= HALF_BYTE else add_initializer(graph, name, array)


class WeightIntegers:
    """Adds the integers of weights to a graph, and the operators that a runtime folds as it loads them."""

    def __init__(self, graph: ir.Graph, names: FreshNames) -> None:
        self._graph = graph
        self._names = names

    def add(
        self,
        reader: ir.Node,
        tensor: str,
        stored: StoredWeight,
        *,
        as_int8: bool = True,
        home: ir.Graph | None = None,
    ) -> ir.Value:
        """Add a weight's integers in front of ``reader``; return the value that a DequantizeLinear takes.

        With ``as_int8`` packed ones are cast to int8; ``home`` is the graph that holds them, if that is a
        nested one. Of a table of floats it returns the weight's values.
        """
        suffix = "quantized" if stored.table is None else "indices"
        name = self._names.claim(f"{short_name(tensor)}.{suffix}")
        integers = _added(home or self._graph, name, stored)
        if stored.table is None:
            if stored.bits > HALF_BYTE or not as_int8:
                return integers
            # Integer kernels are for int8. The runtime casts once, as it loads, and finds one.
            return self._put(reader, make_cast(integers, ir.DataType.INT8, self._name(tensor, "Cast")))
        positions = self._put(reader, make_cast(integers, ir.DataType.INT32, self._name(tensor, "Cast")))
        if stored.offsets is not None:
            offsets = self._constant(tensor, "offsets", stored.offsets.astype(np.int32))
            positions = self._put(reader, make_add(positions, offsets, self._name(tensor, "Add")))
        table = self._constant(tensor, "table", stored.table)
        return self._put(reader, make_gather(table, positions, self._name(tensor, "Gather")))

    def _constant(self, tensor: str, suffix: str, array: np.ndarray) -> ir.Value:
        return add_initializer(self._graph, self._names.claim(f"{short_name(tensor)}.{suffix}"), array)

    def _name(self, tensor: str, operator: str) -> str:
        return self._names.claim(f"{short_name(tensor)}/{operator}")

    def _put(self, reader: ir.Node, node: ir.Node) -> ir.Value:
        put_in_front(reader, node)
        return node.outputs[0]


def _added(graph: ir.Graph, name: str, stored: StoredWeight) -> ir.Value:
    if isinstance(stored.integers, ir.ExternalTensor):
        return add_outside(graph, name, stored.integers)
    return add_integers(graph, name, stored.integers, stored.bits)


Keep = Callable[[StoredWeight, str], StoredWeight]
"""Given what is stored of a weight and the weight's name, returns the same from where it is kept."""
PART = 1 << 20
"""Integers that are packed at once: whole bytes of them."""


def as_it_is(stored: StoredWeight, _name: str) -> StoredWeight:
    """Return a weight itself, which stays in memory."""
    return stored


class StreamedWeights:
    """Writes large integers into the file that the quantized model will have them in.

    A weight whose integers are stored in another form, as 4-bit floats are, stays in memory.
    """

    def __init__(self, file: ConstantsFile) -> None:
        self._file = file

    def __call__(self, stored: StoredWeight, name: str) -> StoredWeight:
        """Return a weight whose integers are in the file, if they are large."""
        array = stored.integers
        if isinstance(array, ir.ExternalTensor) or stored.tensor_scale is not None:
            return stored
        if not lies_apart(array.size * stored.bits // BYTE):
            return stored
        is_packed = stored.bits <= HALF_BYTE
        dtype = packed_type(array, stored.bits) if is_packed else ir.DataType.from_numpy(array.dtype)
        return replace(
            stored, integers=self._file.write(_blocks(array, dtype, is_packed), dtype, array.shape, name)
        )


def _blocks(array: Array, dtype: ir.DataType, is_packed: bool) -> Iterator[bytes | memoryview]:
    flat = np.ascontiguousarray(array).reshape(-1)
    if not is_packed:
        yield flat.view(np.uint8).data
        return
    for start in range(0, flat.size, PART):
        yield ir.Tensor(flat[start : start + PART].astype(dtype.numpy()), dtype=dtype).tobytes()
