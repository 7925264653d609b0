"""Channels of a quantized graph that may be padded for faster kernels, and the graph without what was padded.

A space is all axes that hold the same channels: axis 1 of activations, and axes of the constants of Convs. A
Conv makes new channels, an Add passes them on. A space is closed if something sees how many they are, such as
a Reshape, a Concat or an output of the graph.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError, first_line
from ptq_cli.models.graph_reading import every_node, input_at, nested_graphs, rank_of
from ptq_cli.models.pair_operators import DEQUANTIZE, MICROSOFT, QUANTIZE, dequantized_by
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.target.rules import QUICK_GELU
from ptq_cli.qdq.read.quantized_file import MetadataKey

# Each channel of their results is computed from that channel of their inputs alone.
PASSING = (
    QUANTIZE, DEQUANTIZE, "Add", "Mul", "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish",
    "MaxPool", "AveragePool", "GlobalAveragePool", "Identity", "Swish",
)  # fmt: skip
CHANNEL_AXIS = 1  # axis of an activation
ChannelAxis = tuple[ir.Value, int]  # A value and its axis of channels


@dataclass(frozen=True, kw_only=True)
class StoredConv:
    """A Conv whose weight is stored as int8, with the DequantizeLinears of its weight and bias."""

    node: ir.Node
    weight: ir.Node
    bias: ir.Node | None
    depthwise: bool

    @property
    def integers(self) -> ir.Value:
        """The stored weight."""
        value = self.weight.inputs[0]
        assert value is not None  # noqa: S101 - a DequantizeLinear has it
        return value

    @property
    def outputs(self) -> int:
        """How many channels it makes."""
        return _size(self.integers, 0) or 0

    @property
    def inputs(self) -> int:
        """How many channels each of them reads."""
        return _size(self.integers, 1) or 0

    @property
    def per_channel(self) -> tuple[ir.Value, ...]:
        """The constants with one element per output channel: scales, zero points and the stored bias."""
        found = [*self.weight.inputs[1:], *(self.bias.inputs if self.bias is not None else ())]
        return tuple(value for value in found if value is not None and value.shape and len(value.shape) == 1)


@dataclass(frozen=True, kw_only=True)
class Space:
    """Channels of a graph that nothing else counts: how many they are, and the axes that hold them.

    Attributes:
        keepers: the depthwise Convs that pass them on.
        entries: the QuantizeLinears behind which they are first seen; empty if Convs alone make them.
    """

    size: int
    axes: Sequence[ChannelAxis]
    keepers: Sequence[StoredConv]
    entries: Sequence[ir.Node]


def stored_convs(graph: ir.Graph) -> dict[ir.Node, StoredConv]:
    """Return the Convs whose weight, and bias if there is one, stand behind a DequantizeLinear."""
    found = {node: _stored_conv(node) for node in graph if node.op_type == "Conv" and node.domain == ""}
    return {node: conv for node, conv in found.items() if conv is not None}


def open_spaces(graph: ir.Graph) -> list[Space]:
    """Return the spaces whose number of channels nothing sees but Convs, in graph order."""
    survey = _Survey(graph)
    for node in graph:
        survey.visit(node)
    return list(survey.spaces())


class _Survey:
    """Joins axes node by node."""

    def __init__(self, graph: ir.Graph) -> None:
        self._convs = stored_convs(graph)
        self._parents: dict[ChannelAxis, ChannelAxis] = {}
        self._closed: list[ChannelAxis] = [(value, CHANNEL_AXIS) for value in (*graph.inputs, *graph.outputs)]
        self._entries: dict[ChannelAxis, list[ir.Node]] = {}
        self._constants = {
            value for conv in self._convs.values() for value in (conv.integers, *conv.per_channel)
        }

    def visit(self, node: ir.Node) -> None:
        """Join what a node passes on, and close what it sees the number of."""
        conv = self._convs.get(node)
        if conv is not None:
            self._visit_conv(conv)
        elif self._enters(node):
            self._entries.setdefault((node.outputs[0], CHANNEL_AXIS), []).append(node)
        elif _is_passing(node) and (passed := _passed(node)):
            for value in passed:
                self._join((value, CHANNEL_AXIS), (passed[0], CHANNEL_AXIS))
        elif not self._is_of_conv(node):
            self._close(node)

    def spaces(self) -> Iterator[Space]:
        members: dict[ChannelAxis, list[ChannelAxis]] = {}
        for item in self._parents:
            members.setdefault(self._top(item), []).append(item)
        closed = {self._top(item) for item in self._closed}
        for top, axes in members.items():
            (size, *others) = {_size(value, axis) for value, axis in axes}
            if top in closed or others or size is None:
                continue
            entries = [node for item in axes for node in self._entries.get(item, ())]
            keepers = [conv for conv in self._convs.values() if conv.depthwise and (conv.integers, 0) in axes]
            yield Space(size=size, axes=axes, keepers=keepers, entries=entries)

    def _visit_conv(self, conv: StoredConv) -> None:
        source, result = conv.node.inputs[0], (conv.node.outputs[0], CHANNEL_AXIS)
        assert source is not None  # noqa: S101 - a Conv has an input
        restored = [item.outputs[0] for item in (conv.weight, conv.bias) if item is not None]
        for value in (conv.integers, *conv.per_channel, *restored):
            self._join((value, 0), result)
        self._join((restored[0], 1), (conv.integers, 1))
        if conv.node.attributes.get_int("group", 1) == 1:
            self._join((source, CHANNEL_AXIS), (conv.integers, 1))
            return
        self._closed.append((conv.integers, 1))
        if conv.depthwise:
            self._join((source, CHANNEL_AXIS), result)
        else:
            self._closed += [(source, CHANNEL_AXIS), result]

    def _enters(self, node: ir.Node) -> bool:
        source = node.inputs[0] if node.op_type == QUANTIZE else None
        if source is None or is_constant(source):
            return False
        producer = source.producer()
        return producer is None or (producer not in self._convs and not _is_passing(producer))

    def _is_of_conv(self, node: ir.Node) -> bool:
        readers = [use.node for output in node.outputs for use in output.uses()]
        return node.op_type == DEQUANTIZE and bool(readers) and all(item in self._convs for item in readers)

    def _close(self, node: ir.Node) -> None:
        inside = [
            item for graph in nested_graphs(node) for inner in every_node(graph) for item in inner.inputs
        ]
        for value in (*node.inputs, *node.outputs, *inside):
            if value is not None:
                self._closed += [(value, CHANNEL_AXIS), *([(value, 0)] if value in self._constants else [])]

    def _join(self, one: ChannelAxis, other: ChannelAxis) -> None:
        self._parents[self._top(one)] = self._top(other)

    def _top(self, item: ChannelAxis) -> ChannelAxis:
        self._parents.setdefault(item, item)
        while self._parents[item] != item:
            self._parents[item] = self._parents[self._parents[item]]
            item = self._parents[item]
        return item


def _is_passing(node: ir.Node) -> bool:
    if node.domain == MICROSOFT:
        return node.op_type == QUICK_GELU
    return node.op_type in PASSING and node.domain == ""


def _stored_conv(node: ir.Node) -> StoredConv | None:
    bias = input_at(node, 2)
    weight, restored = dequantized_by(input_at(node, 1)), dequantized_by(bias)
    integers, stored_bias = (item.inputs[0] if item is not None else None for item in (weight, restored))
    if weight is None or integers is None or integers.dtype != ir.DataType.INT8 or not is_constant(integers):
        return None
    if bias is not None and (stored_bias is None or not is_constant(stored_bias)):
        return None
    if weight.attributes.get_int("block_size", 0) or integers.shape is None:
        return None
    group = node.attributes.get_int("group", 1)
    is_depthwise = group > 1 and _size(integers, 1) == 1 and group == _size(integers, 0)
    return StoredConv(node=node, weight=weight, bias=restored, depthwise=is_depthwise)


def _passed(node: ir.Node) -> list[ir.Value]:
    """Return the activations of a node that have the same channels; none if one of them has others."""
    if node.op_type in (QUANTIZE, DEQUANTIZE):
        values = [node.inputs[0], node.outputs[0]]
        scalars = [value for value in node.inputs[1:] if value is not None]
        if any(value.shape is None or list(value.shape) not in ([], [1]) for value in scalars):
            return []
    else:
        values = [*(value for value in node.inputs if not _is_number(value)), *node.outputs]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known or any(is_constant(value) for value in known):
        return []
    same = {(rank_of(value), _size(value, CHANNEL_AXIS)) for value in known}
    (rank, size), *others = same
    return known if not others and size is not None and rank is not None and rank > CHANNEL_AXIS else []


def _is_number(value: ir.Value | None) -> bool:
    """Tell whether an input is left out, or one number for all channels, as it is or restored."""
    restored = dequantized_by(value)
    constant = restored.inputs[0] if restored is not None else value
    return value is None or (
        constant is not None and constant.const_value is not None and constant.const_value.size == 1
    )


def _size(value: ir.Value, axis: int) -> int | None:
    shape = value.shape
    size = shape[axis] if shape is not None and len(shape) > axis else None
    return size if isinstance(size, int) else None


def without_padding(model: ir.Model) -> ir.Model:
    """Return a quantized model without the channels that ``pad_channels`` added; may change it.

    Where there were some, the shapes of computed tensors are unknown afterwards.
    """
    try:
        return _without(model, json.loads(model.metadata_props.get(MetadataKey.PADDED_CHANNELS, "{}")))
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
        for value in conv.per_channel:
            _cut(value, outputs)
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


def _cut(value: ir.Value, *sizes: int) -> None:
    if value.const_value is not None:
        array = value.const_value.numpy()[tuple(slice(size) for size in sizes)]
        value.const_value = ir.Tensor(np.ascontiguousarray(array), name=value.name)
        value.shape = ir.Shape(array.shape)
