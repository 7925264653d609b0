"""The rule of each operator: what takes the factors of channels that it makes, reads or joins.

Each returns the channels of a node's output, or None if what the node reads must stay as it is.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, nested_graphs, rank_of
from ptq_cli.models.preparing.rewriting import Floats, floats_of
from ptq_cli.models.rescaling import moved_scales
from ptq_cli.models.rescaling.scale_spaces import Ids, ScaledConstant, ScaledLayer, ScaleTrace, along

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
    if (
        (is_last and axis != rank - 1)
        or scale.shape != (size,)
        or (shift is not None and floats_of(shift) is None)
    ):
        return None
    trace.channels.fix(trace.of(source))
    given = trace.channels.fresh(len(scale))
    trace.constants.append(ScaledConstant(node=node, index=1, times=given))
    if shift is not None:
        trace.constants.append(ScaledConstant(node=node, index=2, times=given))
    trace.layers.append(ScaledLayer(node=node, taken=NO_IDS, given=given, weight=None))
    return given.reshape(*(-1 if index == axis else 1 for index in range(rank)))


def product_with_vector(trace: ScaleTrace, node: ir.Node, index: int) -> Ids | None:
    """Mul by a constant, its input ``index``; one with a number for each channel takes any factors."""
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
        # A table is large, and reading it copies it.
        table = floats_of(value) if constant_shape(value) == array.shape[::-1] else None
        if table is not None and np.array_equal(table[0], array[:, 0]):
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


def total(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Add, Sub, Sum, Mean, Max and Min: each summand has the same factors, and constants take them."""
    rank = rank_of(node.outputs[0])
    values = [value for value in node.inputs if value is not None]
    if not rank or any(rank_of(value) is None for value in values):
        return None
    numbers = {index: array for index, value in enumerate(values) if (array := floats_of(value)) is not None}
    computed = [_widened(trace.of(value), rank) for index, value in enumerate(values) if index not in numbers]
    if not computed or any(
        value.const_value is not None and index not in numbers for index, value in enumerate(values)
    ):
        return None
    # One bound other than 0 would become one for each channel.
    bounds = [array for array in numbers.values() if array.size == 1 and array.reshape(-1)[0] != 0.0]
    if node.op_type in ("Max", "Min") and bounds:
        return None
    shape = np.broadcast_shapes(*(ids.shape for ids in computed))
    for ids in computed[1:]:
        trace.channels.join(computed[0], ids)
    for index, array in numbers.items():
        if np.any(array):
            times = np.broadcast_to(computed[0], shape)
            trace.constants.append(ScaledConstant(node=node, index=index, times=times))
    return np.broadcast_to(max(computed, key=np.size), shape)


def product(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Mul, and Div by something: of two values that are computed, one stays as it is."""
    left, right = node.inputs[0], node.inputs[1]
    rank = rank_of(node.outputs[0])
    if left is None or right is None or left is right or not rank:
        return None
    is_division = node.op_type == "Div"
    if floats_of(right) is not None:
        return _widened(trace.of(left), rank) if is_division else product_with_vector(trace, node, 1)
    if floats_of(left) is not None:
        return product_with_vector(trace, node, 0) if not is_division else None
    if rank_of(left) is None or rank_of(right) is None:
        return None
    kept, other = (left, right) if is_division or _is_passed(trace, left, right) else (right, left)
    trace.channels.fix(trace.of(other))
    return _widened(trace.of(kept), rank)


def _is_passed(trace: ScaleTrace, left: ir.Value, right: ir.Value) -> bool:
    """Tell whether the left factor may have factors rather than the right one, such as a gate."""
    if trace.is_fixed(trace.of(right)) or trace.is_fixed(trace.of(left)):
        return trace.is_fixed(trace.of(right))
    return _size(left) >= _size(right)


def _size(value: ir.Value) -> int:
    """Return how many axes have several elements, or may have."""
    return sum(size != 1 for size in value.shape) if value.shape is not None else 0


def _widened(ids: Ids, rank: int) -> Ids:
    return ids.reshape(*(1,) * (rank - ids.ndim), *ids.shape)


_Rule = Callable[[ScaleTrace, ir.Node], Ids | Sequence[Ids] | None]
UNCHANGED = (
    "Identity", "Dropout", "Relu", "LeakyRelu", "Abs", "Neg",
)  # fmt: skip
_SPATIAL = (
    "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "Upsample",
)  # fmt: skip
NORMALIZATIONS = (
    "LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "InstanceNormalization",
    "GroupNormalization", "BatchNormalization",
)  # fmt: skip
# By operator. What any other reads, stays as it is
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(UNCHANGED, moved_scales.unchanged),
    **dict.fromkeys(_SPATIAL, moved_scales.spatial),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), moved_scales.reshape),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), moved_scales.reduction),
    "PRelu": moved_scales.prelu,
    "Clip": moved_scales.clip,
    "Pad": moved_scales.pad,
    "Transpose": moved_scales.transpose,
    "Concat": moved_scales.concat,
    "Split": moved_scales.split,
    "Slice": moved_scales.slices,
    "Gather": moved_scales.gather,
    "DepthToSpace": moved_scales.depth_to_space,
    **dict.fromkeys(("Conv", "ConvTranspose"), convolution),
    "Gemm": gemm,
    "MatMul": matmul,
    **dict.fromkeys(NORMALIZATIONS, normalization),
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean", "Max", "Min"), total),
    **dict.fromkeys(("Mul", "Div"), product),
}


def trace_scales(graph: ir.Graph) -> ScaleTrace:
    """Return the constants that take factors of channels, and the channels that must share one.

    Requires: a prepared graph, whose constants are initializers, with the shapes that could be inferred.
    Ensures: whatever positive factors the channels get, those that are joined the same and those that are
    fixed 1, the constants that take them leave the outputs of the graph as they were. What nested graphs read
    is fixed.
    """
    trace = ScaleTrace(_tables(graph))
    for node in graph:
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        found = rule(trace, node) if rule is not None and _is_float(node) else None
        if found is None:
            for value in node.inputs:
                if value is not None:
                    trace.channels.fix(trace.of(value))
        else:
            several = [found] if isinstance(found, np.ndarray) else found
            for value, ids in zip(node.outputs, several, strict=False):
                trace.note(value, ids)
        for inner in nested_graphs(node):
            for value in _captured(inner):
                trace.channels.fix(trace.of(value))
    for output in graph.outputs:
        trace.channels.fix(trace.of(output))
    return trace


def _tables(graph: ir.Graph) -> list[ir.Value]:
    """Return the matrices that Gathers look rows up in."""
    looked_up = (node.inputs[0] for node in graph if node.op_type == "Gather" and node.domain == "")
    return [value for value in looked_up if value is not None and len(constant_shape(value)) == 2]


def _is_float(node: ir.Node) -> bool:
    value = node.outputs[0]
    return value.dtype == ir.DataType.FLOAT and rank_of(value) is not None


def _captured(graph: ir.Graph) -> set[ir.Value]:
    read = {value for node in every_node(graph) for value in node.inputs if value is not None}
    return {value for value in {*read, *graph.outputs} if value.graph is not graph}
