"""The integers of a weight in a graph: as they are, two in a byte, or as indices into a table."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph.fresh_names import FreshNames, short_name
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    add_outside,
    add_packed,
    make_add,
    make_cast,
    make_gather,
    put_in_front,
)
from ptq_cli.qdq.write.weights.weight_quantizer import HALF_BYTE, StoredWeight

PACKED_OPSET = 21
"""The first in which Cast reads INT4 and UINT4."""


def add_integers(graph: ir.Graph, name: str, array: Array, bits: int) -> ir.Value:
    """Add a constant of integers of so many bits: two or four in a byte where these are few.

    Requires: no value of the graph has that name; the integers fit.
    """
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

        Args:
            reader: the operator that has the weight.
            tensor: the weight's name.
            stored: its integers.
            as_int8: packed ones are cast to int8.
            home: the graph that holds them, if that is a nested one.

        Edge case:
            Of a table of floats it returns the weight's values.
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
