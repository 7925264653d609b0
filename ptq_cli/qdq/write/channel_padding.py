"""Pass: channels are padded to a number that a runtime's kernels are fast with, by weights of 0.

Requires: a quantized graph with shapes. Ensures: every output is as before to the bit, since only Convs see
the new channels, and their weights are 0 there. The model's metadata says what was padded, so that
``without_padding`` can take it back.
"""

import json

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.qdq.metadata import PADDED_CHANNELS
from ptq_cli.qdq.read.padded_channels import CHANNELS, Space, open_spaces, stored_convs
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node

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
        model.metadata_props[PADDED_CHANNELS] = json.dumps({"convs": changed, "pads": pads})


def _sizes(graph: ir.Graph) -> dict[str, list[int]]:
    """Return the output and input channels of each stored weight, by its Conv's name."""
    return {conv.node.name or "": [conv.outputs, conv.inputs] for conv in stored_convs(graph).values()}


def _wanted(space: Space, multiple: int, of_inputs: int) -> int:
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
    pads[rank + CHANNELS] = more
    name = new.claim(f"{quantize.name}/Pad")
    constant = new.constant(f"{name}.pads", np.asarray(pads, np.int64))
    readers = list(value.uses())
    inputs = [value, constant, quantize.inputs[2]]
    node = new_node("Pad", inputs, name, dtype=value.dtype, shape=value.shape)
    if value.shape is not None:
        before = [length - more if index == CHANNELS else length for index, length in enumerate(value.shape)]
        value.shape = ir.Shape(before)
    new.graph.insert_after(quantize, node)
    for reader, index in readers:
        reader.replace_input_with(index, node.outputs[0])
    return name
