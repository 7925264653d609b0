"""What the passes ask about a graph."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.tensors import Array

Floats = npt.NDArray[np.floating[Any]]


def array_of(value: ir.Value | None) -> Array | None:
    """Return the array of a constant, or None where a value is computed, fed or absent."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return np.asarray(value.const_value.numpy())


def floats_of(value: ir.Value | None) -> Floats | None:
    """Return the array of a constant of floats that numpy computes with, or None."""
    array = array_of(value)
    return np.asarray(array) if array is not None and array.dtype.kind == "f" else None


def scalar_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant of one element, or None."""
    array = array_of(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes a value if it is one of these operators of ONNX's own."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def is_float32(value: ir.Value | None) -> bool:
    """Tell whether a value is float32. Another width rounds elsewhere, and has fewer kernels."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def operand_beside(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other input of a node of two, or None where both are the same."""
    first, second = node.inputs[0], node.inputs[1]
    if (first is value) == (second is value):
        return None
    return second if first is value else first
