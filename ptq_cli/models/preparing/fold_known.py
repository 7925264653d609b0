"""Constant folding that onnxscript's leaves: parts of a constant, known sizes, and weights that lie on disk.

An exported multi-head attention splits one weight into those of queries, keys and values, or slices it at a
size of its input. Unfolded, they would be quantized again at each run, with one scale for all channels. A
weight on disk that is only moved or cast becomes a constant that is computed when it is asked for.
"""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import LAZY, Move, moved_tensor
from ptq_cli.models.graph_reading import every_node, input_at, register_constant
from ptq_cli.models.preparing.rewriting import array_of, drop, made_by

MOST_FILLED = 1024  # elements of a constant that one value fills
Pick = Callable[[Sequence[object]], object]


def fold_known(model: ir.Model) -> int:
    """Fold each Split of a constant, small filled constants, and each Slice or Gather of known sizes.

    Returns how many.

    Ensures: what was folded is an initializer of the main graph; of a constant on disk nothing was read.
    """
    folded = 0
    for node in [item for item in every_node(model.graph) if item.domain == "" and item.op_type in _FOLDS]:
        tensors = _FOLDS[node.op_type](node)
        if tensors is None or any(output.is_graph_output() for output in node.outputs):
            continue
        if any(output.uses() and not output.name for output in node.outputs):
            continue  # A rule wrote it, and a constant needs a name.
        for output, tensor in zip(node.outputs, tensors, strict=True):
            if not output.uses():
                continue
            output.name = None
            output.replace_all_uses_with(register_constant(model.graph, tensor))
        drop(node)
        folded += 1
    return folded


def _split(node: ir.Node) -> list[ir.TensorProtocol] | None:
    source, sizes = node.inputs[0], array_of(input_at(node, 1))
    tensor = source.const_value if source is not None and not source.is_graph_input() else None
    if tensor is None or not len(tensor.shape) or (sizes is None and input_at(node, 1) is not None):
        return None
    axis = node.attributes.get_int("axis", 0) % len(tensor.shape)
    size, count = int(tensor.shape.numpy()[axis]), len(node.outputs)
    largest = -(-size // count)  # Of parts that are not given the last may be smaller.
    ends = np.minimum(largest * np.arange(1, count + 1), size) if sizes is None else np.cumsum(sizes)
    if len(ends) != count or ends[-1] != size:
        return None
    starts = [0, *ends[:-1]]
    return [
        _part(tensor, axis, slice(int(start), int(end)), output.name or "")
        for start, end, output in zip(starts, ends, node.outputs, strict=True)
    ]


def _part(tensor: ir.TensorProtocol, axis: int, part: slice, name: str) -> ir.TensorProtocol:
    move: Move = lambda array: array[(*[slice(None)] * axis, part)]  # noqa: E731 - it is handed on
    return moved_tensor(tensor, move, name)


def _slice(node: ir.Node) -> list[ir.TensorProtocol] | None:
    bounds = [array_of(input_at(node, index)) for index in (1, 2)]
    steps = input_at(node, 4)
    if any(bound is None or bound.size != 1 for bound in bounds) or not _is_one(steps):
        return None
    start, end = (int(bound.reshape(-1)[0]) for bound in bounds if bound is not None)
    return _sizes(node, lambda sizes: sizes[start:end])


def _is_one(steps: ir.Value | None) -> bool:
    array = array_of(steps)
    return steps is None or (array is not None and array.size == 1 and bool(np.all(array == 1)))


def _gather(node: ir.Node) -> list[ir.TensorProtocol] | None:
    indices = array_of(input_at(node, 1))
    if indices is None:
        return None
    places = indices.astype(np.int64)
    return _sizes(node, lambda sizes: np.array(sizes, object)[places] if _fit(places, len(sizes)) else None)


def _fit(places: npt.NDArray[np.int64], count: int) -> bool:
    return bool(np.all((places >= -count) & (places < count)))


def _sizes(node: ir.Node, pick: Pick) -> list[ir.TensorProtocol] | None:
    shape = made_by(node.inputs[0], "Shape")
    value = shape.inputs[0] if shape is not None else None
    if shape is None or value is None or value.shape is None:
        return None
    start, end = shape.attributes.get_int("start", 0), shape.attributes.get_int("end", len(value.shape))
    picked = np.asarray(pick(list(value.shape)[start:end]), object)
    if not all(isinstance(size, int) for size in picked.reshape(-1)):
        return None
    return [ir.tensor(picked.astype(np.int64), name=node.outputs[0].name)]


def _filled(node: ir.Node) -> list[ir.TensorProtocol] | None:
    sizes, value = array_of(node.inputs[0]), node.attributes.get_tensor("value")
    if sizes is None or prod(sizes.tolist()) > MOST_FILLED:
        return None
    fill = value.numpy() if value is not None else np.zeros(1, np.float32)
    return [ir.tensor(np.full(sizes, fill.reshape(-1)[0], fill.dtype), name=node.outputs[0].name)]


# The pads that PyTorch writes begin as zeros of a known shape, which onnxscript leaves.
_FOLDS = {"Split": _split, "Slice": _slice, "Gather": _gather, "ConstantOfShape": _filled}


def fold_lazily(model: ir.Model) -> int:
    """Fold what moves or casts a constant that lies on disk, and return how many nodes went.

    Ensures: what was folded is an initializer of the main graph, and nothing of it was read.
    """
    folded = 0
    for node in list(every_node(model.graph)):
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
        output.replace_all_uses_with(register_constant(model.graph, lazy))
        drop(node)
        folded += 1
    return folded


def _transpose(node: ir.Node) -> Move:
    axes = list(node.attributes.get_ints("perm", ())) or None
    return lambda array: array.transpose(axes)


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
    "Identity": lambda _node: lambda array: array,
    "Reshape": _reshape,
    "Cast": _cast,
}
