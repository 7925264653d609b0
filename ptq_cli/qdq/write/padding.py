"""Passes: channels padded for fast kernels by weights of 0, and zeros that count in a mean as a Pad.

Requires: a quantized graph with shapes. Ensures: every output is as before to the bit, since only Convs see
the new channels, and their weights are 0 there. The model's metadata says what was padded, so that
``without_padding`` can take it back.
"""

import json

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import RESULT, every_node, input_at
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.plan.refusals import moved_to
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.padded_channels import CHANNEL_AXIS, Space, open_spaces, stored_convs
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, own_graph, put_in_front

_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
MOST_GROWTH = 2.0  # padding to more than so many times the channels costs more than the faster kernel saves


def pad_channels(model: ir.Model, multiple: int, of_inputs: int) -> None:
    """Pad channels between Convs to one multiple, and those of quantized inputs to another; 1 leaves them."""
    graph = model.graph
    sizes = _sizes(graph)
    wanted = [(space, _wanted(space, multiple, of_inputs)) for space in open_spaces(graph)]
    padded = [(space, size) for space, size in wanted if size > space.size]
    new, pads = NewNodes(graph), list[str]()
    for space, size in padded:
        for value, axis in space.axes:
            _widen(value, axis, size)
        for conv in space.keepers:
            conv.node.attributes.add(ir.AttrInt64("group", size))
        pads += [_pad_entry(new, node, size - space.size) for node in space.entries]
    if padded:
        changed = {name: sizes[name] for name, size in _sizes(graph).items() if size != sizes[name]}
        model.metadata_props[MetadataKey.PADDED_CHANNELS] = json.dumps({"convs": changed, "pads": pads})


def _sizes(graph: ir.Graph) -> dict[str, list[int]]:
    """Return the output and input channels of each stored weight, by its Conv's name."""
    return {conv.node.name or "": [conv.outputs, conv.inputs] for conv in stored_convs(graph).values()}


def _wanted(space: Space, multiple: int, of_inputs: int) -> int:
    # Other integers than bytes are computed in float, and ONNX Runtime has no Pad of 16 bits.
    if any(node.outputs[0].dtype not in _BYTES for node in space.entries):
        return space.size
    step = of_inputs if space.entries else multiple
    size = -(-space.size // step) * step
    return size if size <= MOST_GROWTH * space.size else space.size


def _widen(value: ir.Value, axis: int, size: int) -> None:
    if value.const_value is not None:
        array = value.const_value.numpy()
        # A new channel has the scale of the last one, so that a bias still has the product of its two.
        is_scale = np.issubdtype(array.dtype, np.floating)
        width = [(0, size - array.shape[axis] if index == axis else 0) for index in range(array.ndim)]
        padded: Array = np.pad(array, width, mode="edge" if is_scale else "constant")
        value.const_value = ir.Tensor(np.ascontiguousarray(padded), name=value.name)
        value.shape = ir.Shape(padded.shape)
    elif value.shape is not None:
        sizes = [size if index == axis else length for index, length in enumerate(value.shape)]
        value.shape = ir.Shape(sizes)


def _pad_entry(new: NewNodes, quantize: ir.Node, more: int) -> str:
    """Insert a Pad of integers behind a QuantizeLinear, and return its name."""
    value = quantize.outputs[0]
    rank = len(value.shape or ())
    pads = [0] * (2 * rank)
    pads[rank + CHANNEL_AXIS] = more
    name = new.claim(f"{quantize.name}/Pad")
    constant = new.constant(f"{name}.pads", np.asarray(pads, np.int64))
    readers = list(value.uses())
    inputs = [value, constant, quantize.inputs[2]]
    node = new_node("Pad", inputs, name, dtype=value.dtype, shape=value.shape)
    if value.shape is not None:
        before = [
            length - more if index == CHANNEL_AXIS else length for index, length in enumerate(value.shape)
        ]
        value.shape = ir.Shape(before)
    new.graph.insert_after(quantize, node)
    for reader, index in readers:
        reader.replace_input_with(index, node.outputs[0])
    return name


def pad_apart(model: ir.Model, target: Target) -> None:
    """Write the padding of such means as a Pad of its own (``pads_apart``).

    Requires: the pairs are final. Ensures: the same results to the bit. Behind integers the Pad has a pair of
    their grid, without which OpenVINO would take it back. Padding of unknown sizes stays.
    """
    new = NewNodes(model.graph)
    for node in list(every_node(model.graph)):
        rule, x = target.op.get(node.op_type), input_at(node, 0)
        pads = _counted_pads(node) if rule is not None and rule.pads_apart and not node.domain else None
        if pads is None or x is None:
            continue
        before = next(filter(None, map(dequantized_by, moved_to(x, target))), None)
        is_shifted = before is not None and bool(np.any(grid_of(before).zero_point != 0))
        if not is_shifted and not node.attributes.get_int("ceil_mode", 0):
            continue
        half = len(pads) // 2
        # Integers that are padded along one axis alone OpenVINO restores wrongly: here a channel is added.
        is_one_axis = is_shifted and sum(map(any, zip(pads[:half], pads[half:], strict=True))) == 1
        around = np.asarray([0, 0, *pads[:half], 0, int(is_one_axis), *pads[half:]], np.int64)
        inputs = [x, new.constant(f"{node.name}.pads", around)]
        value = new.put(node, "Pad", inputs, f"{node.name}/Pad", dtype=x.dtype)
        if before is not None:
            scale, zero_point = before.inputs[1], input_at(before, 2)
            if scale is None or zero_point is None:
                raise RuntimeError(f"'{before.name}' has no zero point")
            value = put_in_front(node, *new.pair(value, (scale, zero_point), value.name or ""))
        node.replace_input_with(0, value)
        node.attributes.add(ir.AttrInt64s("pads", [0] * len(pads)))
        node.attributes.pop("auto_pad", None)
        if is_one_axis:
            _drop_last_channel(new, node)


def _drop_last_channel(new: NewNodes, node: ir.Node) -> None:
    """Let whatever reads a node read all channels of its result but the last."""
    result = node.outputs[0]
    bounds = [
        new.constant(f"{node.name}.{what}", np.asarray([number], np.int64))
        for what, number in (("first", 0), ("end", -1), ("axis", 1))
    ]
    part = ir.node("Slice", [result, *bounds], name=new.claim(f"{node.name}/Slice"))
    ir.convenience.replace_all_uses_with(result, part.outputs[0], replace_graph_outputs=True)
    part.replace_input_with(0, result)
    part.outputs[0].name, result.name = result.name, new.claim(f"{node.name}/channels{RESULT}")
    part.outputs[0].type, part.outputs[0].shape, result.shape = result.type, result.shape, None
    own_graph(node).insert_after(node, part)


def _counted_pads(node: ir.Node) -> list[int] | None:
    """Return the zeros that count in a mean before and behind each axis; None without, or if unknown."""
    width = node.attributes.get_ints("kernel_shape", ())
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if not node.attributes.get_int("count_include_pad", 0) or auto == "VALID":
        return None
    pads = list(node.attributes.get_ints("pads", [0] * (2 * len(width))))
    if auto != "NOTSET":
        pads = _same_pads(node, is_upper=auto == "SAME_UPPER")
    return pads if any(pads) and _keeps_windows(node, pads) else None


def _spatial(node: ir.Node) -> list[tuple[int | None, int, int, int]]:
    """Return size (None if not known), kernel width, stride and dilation along each spatial axis."""
    width, x = node.attributes.get_ints("kernel_shape", ()), node.inputs[0]
    shape = list(x.shape)[2:] if x is not None and x.shape is not None else [None] * len(width)
    sizes = [size if isinstance(size, int) else None for size in shape]
    steps, gaps = (node.attributes.get_ints(name, [1] * len(width)) for name in ("strides", "dilations"))
    return list(zip(sizes, width, steps, gaps, strict=True))


def _keeps_windows(node: ir.Node, pads: list[int]) -> bool:
    """Tell whether ``ceil_mode`` is known to give the same windows behind a Pad."""
    # ONNX drops a window that begins in the padding behind, which a Pad would keep.
    axes = _spatial(node) if node.attributes.get_int("ceil_mode", 0) else []
    for index, (size, width, step, gap) in enumerate(axes):
        extent, begin, end = (width - 1) * gap + 1, pads[index], pads[index + len(axes)]
        if step <= extent - end:
            continue  # Not even the last window begins there, whatever the size.
        if size is None or -(-(size + begin + end - extent) // step) * step >= size + begin:
            return False
    return True


def _same_pads(node: ir.Node, *, is_upper: bool) -> list[int]:
    """Return the pads that ``auto_pad`` stands for; none where they depend on sizes that are not known."""
    begins, ends = [], []
    for size, width, step, gap in _spatial(node):
        # With steps of 1 they are the same for every size.
        known = width if size is None and step == 1 else size
        if known is None or gap != 1:
            return []
        total = max((-(-known // step) - 1) * step + width - known, 0)
        less, more = total // 2, total - total // 2
        begins.append(less if is_upper else more)
        ends.append(more if is_upper else less)
    return [*begins, *ends]
