"""Weights of a large model that reach a node through operators which only move them, folded without reading.

onnxscript's folding would hold each result in memory. Here the result is a constant that is computed from the
file whenever it is asked for.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import LAZY, Move, moved_tensor
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.preparing.rewriting.edit import drop
from ptq_cli.models.preparing.rewriting.match import array_of


def fold_lazily(model: ir.Model) -> int:
    """Fold what moves or casts a constant that lies on disk, and return how many nodes went.

    Ensures: what was folded is an initializer of the main graph, and nothing of it was read.

    Args:
        model: is changed in place.
    """
    folded = 0
    for node in list(model.graph.all_nodes()):
        source = node.inputs[0] if node.inputs else None
        tensor = source.const_value if source is not None else None
        if node.domain or source is None or source.is_graph_input() or not isinstance(tensor, LAZY):
            continue
        output = node.outputs[0]
        make = _MOVES.get(node.op_type)
        move = make(node) if make is not None and not output.is_graph_output() else None
        if move is None:
            continue
        lazy = moved_tensor(tensor, move, output.name or "")
        value = ir.Value(
            name=lazy.name,
            shape=ir.Shape(lazy.shape.numpy()),
            type=ir.TensorType(lazy.dtype),
            const_value=lazy,
        )
        output.replace_all_uses_with(value)
        drop(node)
        model.graph.register_initializer(value)
        folded += 1
    return folded


def _transpose(node: ir.Node) -> Move:
    axes = list(node.attributes.get_ints("perm", ())) or None
    return lambda array: array.transpose(axes)


def _identity(_node: ir.Node) -> Move:
    return lambda array: array


def _reshape(node: ir.Node) -> Move | None:
    sizes = array_of(input_at(node, 1))
    source = node.inputs[0]
    if sizes is None or source is None or source.const_value is None:
        return None
    before = source.const_value.shape.numpy()
    keeps = node.attributes.get_int("allowzero", 0) == 0
    shape = [before[i] if size == 0 and keeps else int(size) for i, size in enumerate(sizes)]
    return lambda array: array.reshape(shape)


def _cast(node: ir.Node) -> Move | None:
    wanted = ir.DataType(node.attributes.get_int("to", 0))
    dtype = np.dtype(wanted.numpy()) if wanted in (ir.DataType.FLOAT, ir.DataType.FLOAT16) else None
    return (lambda array: array.astype(dtype, copy=False)) if dtype is not None else None


_MOVES: dict[str, Callable[[ir.Node], Move | None]] = {
    "Transpose": _transpose,
    "Identity": _identity,
    "Reshape": _reshape,
    "Cast": _cast,
}
