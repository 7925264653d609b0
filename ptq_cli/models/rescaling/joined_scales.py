"""Nodes that join two values: sums, whose summands share factors, and products, of which one factor stays.

Each function returns the channels of a node's output, or None if what the node reads must stay as it is.
"""

from functools import reduce

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import rank_of
from ptq_cli.models.preparing.rewriting.match import Floats, floats_of
from ptq_cli.models.rescaling.channel_ids import Ids
from ptq_cli.models.rescaling.layer_scales import product_with_vector
from ptq_cli.models.rescaling.scale_trace import ScaledConstant, ScaleTrace


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
    if node.op_type in ("Max", "Min") and any(_is_one_bound(array) for array in numbers.values()):
        return None
    shape = np.broadcast_shapes(*(ids.shape for ids in computed))
    for ids in computed[1:]:
        trace.channels.join(computed[0], ids)
    for index, array in numbers.items():
        if np.any(array):
            times = np.broadcast_to(computed[0], shape)
            trace.constants.append(ScaledConstant(node=node, index=index, times=times))
    return np.broadcast_to(reduce(_more, computed), shape)


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


def _is_one_bound(array: Floats) -> bool:
    """Tell whether a bound is one number other than 0: it would become one for each channel."""
    return bool(array.size == 1 and array.reshape(-1)[0] != 0.0)


def _widened(ids: Ids, rank: int) -> Ids:
    return ids.reshape(*(1,) * (rank - ids.ndim), *ids.shape)


def _more(one: Ids, other: Ids) -> Ids:
    return one if one.size >= other.size else other
