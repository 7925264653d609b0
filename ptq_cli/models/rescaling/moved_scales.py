"""Nodes that hand channels on: what moves values, and what a positive factor passes through.

Each function returns the channels of a node's output, or None if what the node reads must stay as it is.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at, rank_of
from ptq_cli.models.preparing.rewriting import array_of, scalar_of
from ptq_cli.models.rescaling.scale_spaces import Ids, ScaleTrace, along, varies


def unchanged(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """An operator on each value by itself that a positive factor passes through."""
    return _source(trace, node)


def prelu(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """PRelu with a constant slope, which is the same for any positive factor."""
    return _source(trace, node) if array_of(input_at(node, 1)) is not None else None


def clip(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Clip at 0, which is a Relu. One with another bound would need a bound for each channel."""
    low, high = (input_at(node, index) for index in (1, 2))
    if (low is not None and scalar_of(low) is None) or (high is not None and scalar_of(high) is None):
        return None
    bounds = (
        scalar_of(low) if low is not None else -math.inf,
        scalar_of(high) if high is not None else math.inf,
    )
    return _source(trace, node) if all(bound in (0.0, -math.inf, math.inf) for bound in bounds) else None


def spatial(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """A pooling or a Resize over the axes behind the channels."""
    ids = _source(trace, node)
    if ids is None or varies(ids, (0, *range(2, ids.ndim))):
        return None
    if node.op_type in ("Resize", "Upsample"):
        sizes = [
            value.shape[1] if value is not None and value.shape is not None else None
            for value in (node.inputs[0], node.outputs[0])
        ]
        is_cropped = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        if not isinstance(sizes[0], int) or sizes[0] != sizes[1] or is_cropped:
            return None
    return ids


def pad(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Pad with zeros, or with what is there, along axes on which channels do not vary."""
    ids, ends = _source(trace, node), array_of(input_at(node, 1))
    mode, value, axes = node.attributes.get_string("mode", "constant"), input_at(node, 2), input_at(node, 3)
    if ids is None or ends is None or (axes is not None and array_of(axes) is None):
        return None
    if mode == "constant" and value is not None and scalar_of(value) != 0.0:
        return None
    named = array_of(axes)
    padded = [int(axis) % ids.ndim for axis in named] if named is not None else list(range(ids.ndim))
    touched = [axis for axis, one, other in zip(padded, *np.split(ends, 2), strict=True) if one or other]
    return None if varies(ids, touched) else ids


def transpose(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Transpose."""
    ids = _source(trace, node)
    if ids is None:
        return None
    return np.transpose(ids, node.attributes.get_ints("perm", list(range(ids.ndim))[::-1]))


def reshape(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Reshape, Flatten, Squeeze and Unsqueeze, where the sizes of the axes with the channels are known."""
    source, output = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or output.shape is None:
        return None
    ids, taken, given = trace.of(source), list(source.shape), list(output.shape)
    if trace.is_fixed(ids):
        return np.zeros((1,) * len(given), np.int64)
    first = next((axis for axis, size in enumerate(ids.shape) if size != 1), ids.ndim)
    tail = taken[first:]
    if not all(isinstance(size, int) for size in tail):
        return _reshaped_spaces(ids, taken, given, first)
    wanted = math.prod(int(size) for size in tail if isinstance(size, int))
    for start in range(len(given), -1, -1):
        rest = given[start:]
        if (
            all(isinstance(size, int) for size in rest)
            and math.prod(int(str(size)) for size in rest) == wanted
        ):
            full = np.broadcast_to(ids, (*ids.shape[:first], *(int(str(size)) for size in tail)))
            return full.reshape(*(1,) * start, *(int(str(size)) for size in rest))
    return None


def _reshaped_spaces(ids: Ids, taken: Sequence[object], given: Sequence[object], first: int) -> Ids | None:
    """Axes before and of the channels stay as they are; what is behind them is joined or divided."""
    if varies(ids, range(first + 1, ids.ndim)) or len(given) <= first:
        return None
    if list(taken[: first + 1]) != list(given[: first + 1]):
        return None
    return ids.reshape(*ids.shape[: first + 1], *(1,) * (len(given) - first - 1))


def reduction(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """A mean, a sum or a largest value over axes on which channels do not vary."""
    ids, second = _source(trace, node), input_at(node, 1)
    axes = array_of(second) if second is not None else node.attributes.get_ints("axes", [])
    if ids is None or axes is None or not len(axes):
        return None
    gone = [int(axis) % ids.ndim for axis in axes]
    if varies(ids, gone):
        return None
    return ids if node.attributes.get_int("keepdims", 1) else ids.squeeze(tuple(gone))


def concat(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Concat of values along the channels, or along another axis."""
    rank = rank_of(node.outputs[0])
    if rank is None or any(value is None or rank_of(value) != rank for value in node.inputs):
        return None
    axis = node.attributes.get_int("axis", 0) % rank
    values = [value for value in node.inputs if value is not None]
    parts = [trace.of(value) for value in values]
    sizes = [value.shape[axis] if value.shape is not None else None for value in values]
    if not all(isinstance(size, int) for size in sizes):
        for part in parts[1:]:
            if part.shape[axis] != 1 or parts[0].shape[axis] != 1:
                return None
            trace.channels.join(parts[0], part)
        return parts[0]
    shape = [max(part.shape[other] for part in parts) for other in range(rank)]
    full = [
        np.broadcast_to(part, [*shape[:axis], int(str(size)), *shape[axis + 1 :]])
        for part, size in zip(parts, sizes, strict=True)
    ]
    return np.concatenate(full, axis=axis)


def split(trace: ScaleTrace, node: ir.Node) -> list[Ids] | None:
    """Split along the channels, or along another axis."""
    ids = _source(trace, node)
    if ids is None:
        return None
    axis, first = node.attributes.get_int("axis", 0) % ids.ndim, 0
    found = []
    for output in node.outputs:
        size = output.shape[axis] if output.shape is not None else None
        if ids.shape[axis] == 1:
            found.append(ids)
        elif isinstance(size, int):
            found.append(ids.take(range(first, first + size), axis=axis))
            first += size
        else:
            return None
    return found


def slices(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Slice with constant bounds."""
    ids, source = _source(trace, node), node.inputs[0]
    starts, ends = (array_of(input_at(node, index)) for index in (1, 2))
    if ids is None or source is None or starts is None or ends is None:
        return None
    axes, steps = (
        array_of(value) if (value := input_at(node, index)) is not None else None for index in (3, 4)
    )
    if (axes is None and input_at(node, 3) is not None) or (steps is None and input_at(node, 4) is not None):
        return None
    places = axes if axes is not None else np.arange(len(starts))
    for number, axis in enumerate(places.tolist()):
        place, step = axis % ids.ndim, int(steps[number]) if steps is not None else 1
        if ids.shape[place] != 1:
            if step < 1:
                return None
            ids = ids[(slice(None),) * place + (slice(int(starts[number]), int(ends[number]), step),)]
    return ids


def gather(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """Gather of computed values at constant places."""
    ids, places = _source(trace, node), array_of(input_at(node, 1))
    source, rank = node.inputs[0], rank_of(node.outputs[0])
    if ids is None or places is None or source is None or array_of(source) is not None or rank is None:
        return None
    axis = node.attributes.get_int("axis", 0) % ids.ndim
    wanted = np.asarray(places, np.int64) if ids.shape[axis] != 1 else np.zeros(places.shape, np.int64)
    return np.take(ids, wanted, axis=axis)


def depth_to_space(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    """DepthToSpace: the channels that go side by side share a factor."""
    ids = _source(trace, node)
    found = along(ids, 1, ids.shape[1]) if ids is not None and ids.ndim == 4 else None
    if found is None or len(found) == 1:
        return None
    count = node.attributes.get_int("blocksize", 1) ** 2
    if node.attributes.get_string("mode", "DCR") == "DCR":
        apart = found.reshape(count, -1)
    else:
        apart = found.reshape(-1, count).T
    trace.channels.join(apart[:1], apart)
    return np.asarray(apart[0].reshape(1, -1, 1, 1), np.int64)


def _source(trace: ScaleTrace, node: ir.Node) -> Ids | None:
    source = input_at(node, 0)
    return trace.of(source) if source is not None and rank_of(source) else None
