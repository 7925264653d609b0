"""Nodes that make channels and read them: layers, normalizations and products with a constant vector.

Each function returns the channels of a node's output, or None if what the node reads must stay as it is.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at, rank_of
from ptq_cli.models.preparing.rewriting.match import Floats, floats_of
from ptq_cli.models.rescaling.channel_ids import Ids
from ptq_cli.models.rescaling.scale_trace import ScaledConstant, ScaledLayer, ScaleTrace, along

NO_IDS = np.zeros(0, np.int64)


def convolution(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Conv and ConvTranspose, with groups."""
    weight = own_weight(trace, node, 1)
    if weight is None or weight.ndim < 3:
        return None
    group, is_transposed = node.attributes.get_int("group", 1), node.op_type == "ConvTranspose"
    ones = (1,) * (weight.ndim - 2)
    inputs = weight.shape[0] if is_transposed else weight.shape[1] * group
    outputs = weight.shape[1] * group if is_transposed else weight.shape[0]
    if inputs % group or outputs % group:
        return None
    taken, given = _taken(trace, node, 1, inputs), _given(trace, node, outputs)
    each = (taken.reshape(group, -1), given.reshape(group, -1))
    over, times = (np.repeat(each[side], each[1 - side].shape[1], axis=0) for side in (0, 1))
    if is_transposed:
        over, times = taken.reshape(-1, 1, *ones), times.reshape(inputs, -1, *ones)
    else:
        over, times = over.reshape(outputs, -1, *ones), given.reshape(-1, 1, *ones)
    _scale_weight(trace, node, ScaledLayer(node=node, taken=taken, given=given), times, over)
    return given.reshape(1, -1, *ones)


def gemm(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Gemm with a matrix of constants on its right."""
    weight = own_weight(trace, node, 1)
    if weight is None or weight.ndim != 2 or node.attributes.get_int("transA", 0) != 0:
        return None
    is_turned = node.attributes.get_int("transB", 0) != 0
    inputs, outputs = weight.shape[::-1] if is_turned else weight.shape
    taken, given = _taken(trace, node, 1, inputs), _given(trace, node, outputs)
    times, over = (given[:, None], taken[None]) if is_turned else (given[None], taken[:, None])
    _scale_weight(trace, node, ScaledLayer(node=node, taken=taken, given=given), times, over)
    return given[None]


def matmul(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """MatMul with constants on its right, or of two values, as the last product of attention."""
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None:
        return None
    rank = rank_of(node.outputs[0])
    weight = own_weight(trace, node, 1)
    if weight is None:
        return _product(trace, left, right) if floats_of(left) is None and floats_of(right) is None else None
    if weight.ndim < 2 or not rank or rank_of(left) is None or rank < weight.ndim:
        return None
    taken = _taken(trace, node, -1, weight.shape[-2])
    given = trace.channels.fresh(weight.shape[-1])
    layer = ScaledLayer(node=node, taken=taken, given=given)
    _scale_weight(trace, node, layer, given[None], taken[:, None])
    return given.reshape(*(1,) * (rank - 1), -1)


def _product(trace: ScaleTrace, left: ir.Value, right: ir.Value) -> Ids | None:
    """Channels of the right factor's columns stay apart in the product; all else is summed over."""
    ids = trace.of(right)
    if rank_of(left) != ids.ndim or ids.ndim < 2:
        return None
    trace.channels.fix(trace.of(left))
    if ids.shape[-2] != 1:
        trace.channels.fix(ids)
    return trace.channels.roots(ids.take([0], axis=-2))


def normalization(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """LayerNormalization and what else multiplies by a constant for each channel at its end."""
    source, scale = input_at(node, 0), floats_of(input_at(node, 1))
    rank = rank_of(source)
    if source is None or scale is None or rank is None:
        return None
    is_last = node.op_type in ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")
    axis = node.attributes.get_int("axis", -1) % rank if is_last else 1
    shift = input_at(node, 2)
    size = source.shape[axis] if source.shape is not None else None
    if (is_last and axis != rank - 1) or scale.shape != (size,) or _is_computed(shift):
        return None
    trace.channels.fix(trace.of(source))
    given = trace.channels.fresh(len(scale))
    trace.constants.append(ScaledConstant(node=node, index=1, times=given))
    if shift is not None:
        trace.constants.append(ScaledConstant(node=node, index=2, times=given))
    trace.layers.append(ScaledLayer(node=node, taken=NO_IDS, given=given, weight=None))
    return given.reshape(*(-1 if index == axis else 1 for index in range(rank)))


def product_with_vector(trace: ScaleTrace, node: ir.Node, index: int) -> Ids | None:
    """Mul of a value and a constant; one with a number for each channel takes any factors.

    Args:
        trace: what is known.
        node: the Mul.
        index: which input the constant is.
    """
    vector, source = own_weight(trace, node, index), node.inputs[1 - index]
    rank = rank_of(node.outputs[0])
    if source is None or rank is None:
        return None
    ids = trace.of(source)
    ids = ids.reshape(*(1,) * (rank - ids.ndim), *ids.shape)
    if vector is None or vector.size == 1 or vector.size != max(vector.shape):
        return ids
    given = trace.channels.fresh(vector.size)
    shape = (*(1,) * (rank - vector.ndim), *vector.shape)
    times = given.reshape(shape)
    trace.constants.append(ScaledConstant(node=node, index=index, times=times, over=ids))
    trace.layers.append(ScaledLayer(node=node, taken=NO_IDS, given=given, weight=None))
    return times


def own_weight(trace: ScaleTrace, node: ir.Node, index: int) -> Floats | None:
    """Return a constant that this node alone reads, and whose transpose no Gather looks rows up in."""
    value = input_at(node, index)
    array = floats_of(value)
    if value is None or array is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    if array.dtype != np.float32 or not array.size or _is_turned(array, trace.tables):
        return None
    return array


def _is_turned(array: Floats, tables: Sequence[ir.Value]) -> bool:
    """Tell whether a table of embeddings has the same numbers: one set of integers then serves both."""
    for value in tables:
        table = floats_of(value)
        if table is not None and table.shape == array.shape[::-1] and np.array_equal(table[0], array[:, 0]):
            return np.array_equal(table.T, array)
    return False


def _taken(trace: ScaleTrace, node: ir.Node, axis: int, size: int) -> Ids:
    """Return the channels along an axis of what a layer reads, or fixed ones if they vary along others."""
    source = node.inputs[0]
    ids = trace.of(source) if source is not None else NO_IDS
    found = along(ids, axis, size)
    if found is None:
        trace.channels.fix(ids)
        return np.zeros(size, np.int64)
    return found


def _given(trace: ScaleTrace, node: ir.Node, size: int) -> Ids:
    bias = input_at(node, 2)
    if bias is not None and floats_of(bias) is None:
        return np.zeros(size, np.int64)
    return trace.channels.fresh(size)


def _scale_weight(trace: ScaleTrace, node: ir.Node, layer: ScaledLayer, times: Ids, over: Ids) -> None:
    trace.constants.append(ScaledConstant(node=node, index=1, times=times, over=over))
    if input_at(node, 2) is not None:
        trace.constants.append(ScaledConstant(node=node, index=2, times=layer.given))
    trace.layers.append(layer)


def _is_computed(value: ir.Value | None) -> bool:
    return value is not None and floats_of(value) is None
