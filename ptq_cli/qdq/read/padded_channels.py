"""A quantized graph as it was before its channels were padded for faster kernels."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.qdq.metadata import PADDED_CHANNELS
from ptq_cli.qdq.read.channel_spaces import stored_convs


def without_padding(model: ir.Model) -> ir.Model:
    """Return a quantized model without the channels that ``pad_channels`` added; may change it.

    Edge case:
        Where there were some, the shapes of computed tensors are unknown afterwards.

    Raises:
        InvalidOnnxError: the file says that something was padded which it does not hold.
    """
    try:
        return _without(model, json.loads(model.metadata_props.get(PADDED_CHANNELS, "{}")))
    # The metadata is anybody's text: names, types and numbers may be wrong.
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidOnnxError(
            f"what the quantized model says of its padded channels is wrong: {first_line(error)}",
            hint="run ptq export again, and pass the model that it wrote",
        ) from error


def _without(model: ir.Model, said: dict[str, Any]) -> ir.Model:
    nodes = {node.name: node for node in model.graph}
    convs = {conv.node.name: conv for conv in stored_convs(model.graph).values()}
    for name, (outputs, inputs) in said.get("convs", {}).items():
        conv = convs[name]
        _cut(conv.integers, outputs, inputs)
        _cut_all(conv.per_channel, outputs)
        if conv.depthwise:
            conv.node.attributes.add(ir.AttrInt64("group", outputs))
    for name in said.get("pads", ()):
        pad = nodes[name]
        source = pad.inputs[0]
        assert source is not None  # noqa: S101 - a Pad has it
        ir.convenience.replace_all_uses_with(pad.outputs[0], source)
        model.graph.remove(pad, safe=True)
    for value in (output for node in model.graph if said for output in node.outputs):
        if not value.is_graph_output():
            value.shape = None
    return model


def _cut_all(values: Iterable[ir.Value], size: int) -> None:
    for value in values:
        _cut(value, size)


def _cut(value: ir.Value, *sizes: int) -> None:
    if value.const_value is not None:
        array = value.const_value.numpy()[tuple(slice(size) for size in sizes)]
        value.const_value = ir.Tensor(np.ascontiguousarray(array), name=value.name)
        value.shape = ir.Shape(array.shape)
