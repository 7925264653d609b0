"""A float graph and its quantized twin are cut into stages, so that one layer can run in either form.

Both are cut at the same tensors: where the quantized one has a pair of Q and DQ, where several stages read a
tensor, and behind each operator with quantized constants. A stage is what makes such a tensor from others. It
has the nodes of the float graph in its floating form; in its quantized form it reads and makes integers where
the quantized graph does, so that ONNX Runtime fuses it into the very kernels of the whole model.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.qdq.read.twin_graphs import DEQUANTIZE, Reading, reads

CLAMPS = ("Clip", "Relu")
"""What ONNX Runtime makes a part of the operator before it."""


@dataclass(frozen=True)
class Port:
    """A tensor that passes from stage to stage.

    Attributes:
        tensor: its name in the float model.
        integers: whether it passes as integers.
        name: of the graph's value.
    """

    tensor: str
    integers: bool
    name: str


@dataclass(frozen=True)
class Form:
    """A stage as a model of its own."""

    content: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What makes a tensor, or several, from others.

    Attributes:
        nodes: names of its nodes, in order.
        layer: the node whose quantization it is; empty where it has none of its own.
        inputs: the tensors that it reads, by their name in the float model.
        outputs: those that it makes.
        floating: as it is in the float model.
        quantized: as it is in the quantized model; None where that is no different.
    """

    nodes: tuple[str, ...]
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    floating: Form
    quantized: Form | None


def cut_stages(
    float_model: onnx.ModelProto, quantized_model: onnx.ModelProto, reading: Reading, integer: Collection[str]
) -> tuple[Stage, ...]:
    """Return the stages of a model, in order; run one after the other they are the model.

    Args:
        float_model: the model before quantization.
        quantized_model: the model after it.
        reading: of these two.
        integer: names of the layers that compute on integers.

    Raises:
        InvalidOnnxError: the two have not the same operators.
    """
    kept = [node.name for node in quantized_model.graph.node if node.name not in reading.inserted]
    if kept != [node.name for node in float_model.graph.node]:
        raise InvalidOnnxError(
            "the quantized model has not the operators of the float model",
            hint="run ptq export again, and name the model that it wrote",
        )
    groups = _Grouping(reading).groups()
    floats, quantized = _Cutter(float_model, None), _Cutter(quantized_model, reading)
    weighted = {constant.node for constant in reading.constants}
    operators = {node.name: node.op_type for node in quantized_model.graph.node}
    rewritten = {node.name for node in float_model.graph.node if operators[node.name] != node.op_type}
    stages = []
    for nodes in groups:
        names = tuple(node.name for node in nodes)
        floating, other = floats.form(names), quantized.form(names)
        if not floating.outputs:
            continue  # Nobody reads it.
        differs = any(port.integers for port in (*other.inputs, *other.outputs))
        differs = differs or bool((weighted | rewritten) & set(names))
        layer = next((name for name in names if name in weighted), "") or next(
            (name for name in names if name in integer), ""
        )
        inputs = tuple(dict.fromkeys(port.tensor for port in floating.inputs))
        outputs = tuple(dict.fromkeys(port.tensor for port in floating.outputs))
        stages.append(
            Stage(
                nodes=names,
                layer=layer,
                inputs=inputs,
                outputs=outputs,
                floating=floating,
                quantized=other if differs else None,
            )
        )
    return tuple(stages)


class _Grouping:
    """Which nodes of the float graph are in one stage."""

    def __init__(self, reading: Reading) -> None:
        self._graph = reading.float_graph
        self._cut = set(reading.pairs) | {item.name for item in self._graph.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self._graph.node:
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)
        self._weighted = {constant.node for constant in reading.constants}
        # No two layers with weights in one stage: they could not be told apart.
        for node in self._graph.node:
            if node.name in self._weighted:
                self._cut.update(self._tail(node).output)

    def groups(self) -> list[list[onnx.NodeProto]]:
        """Return the nodes of each stage, in order."""
        root_of: dict[str, str] = {}
        for node in reversed(self._graph.node):
            names = [name for name in node.output if name]
            stages = {root_of[reader.name] for name in names for reader in self._readers.get(name, [])}
            is_root = len(stages) != 1 or any(name in self._cut for name in names)
            root_of[node.name] = node.name if is_root else stages.pop()
        groups: dict[str, list[onnx.NodeProto]] = {}
        for node in self._graph.node:
            groups.setdefault(root_of[node.name], []).append(node)
        # A stage stands where its last node does: then everything that it reads was made before.
        return [groups[node.name] for node in self._graph.node if node.name in groups]

    def _tail(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the node that ends an operator: its bias's Add or its clamp, where it is fused with them."""
        for fits in (self._is_bias_add, _is_clamp):
            readers = self._readers.get(node.output[0], [])
            if len(readers) == 1 and node.output[0] not in self._cut and fits(readers[0]):
                node = readers[0]
        return node

    def _is_bias_add(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Add" and node.name in self._weighted


def _is_clamp(node: onnx.NodeProto) -> bool:
    return node.op_type in CLAMPS


class _Cutter:
    """Takes stages out of one of the two graphs."""

    def __init__(self, model: onnx.ModelProto, reading: Reading | None) -> None:
        self._model = model
        self._reading = reading
        self._pairs = reading.pairs if reading is not None else {}
        graph = model.graph
        self._order = {node.output[0]: index for index, node in enumerate(graph.node)}
        self._by_name = {node.name: node for node in graph.node}
        self._arrays = {item.name: item for item in graph.initializer}
        infos = (*graph.value_info, *graph.input, *graph.output)
        self._infos = {item.name: item for item in infos}
        self._producers = {name: node for node in graph.node for name in node.output if name}
        self._readers: dict[str, set[str]] = {}
        for node in graph.node:
            for name in reads(node):
                self._readers.setdefault(name, set()).add(node.name)
        self._outputs = {item.name for item in graph.output}
        self._of_integers = {pair.integers: pair for pair in self._pairs.values()}
        self._of_source = {pair.source: pair for pair in self._pairs.values()}

    def form(self, names: Sequence[str]) -> Form:
        """Return a stage of these nodes as a model."""
        own = [self._by_name[name] for name in names]
        made = {name for node in own for name in node.output if name}
        outputs = tuple(self._outgoing(own, set(names)))
        nodes = {node.output[0]: node for node in own}
        inputs: dict[str, Port] = {}
        for port in outputs:
            if port.integers:
                quantize = self._producers[port.name]
                nodes[quantize.output[0]] = quantize
        for node in own:
            for name in reads(node):
                if name not in made:
                    self._follow(name, nodes, inputs)
        ordered = sorted(nodes.values(), key=lambda node: self._order[node.output[0]])
        return Form(self._serialized(ordered, inputs, outputs), tuple(inputs.values()), outputs)

    def _outgoing(self, own: Sequence[onnx.NodeProto], names: set[str]) -> Iterator[Port]:
        for node in own:
            for name in filter(None, node.output):
                pair = self._of_source.get(name)
                readers = self._readers.get(name, set()) - names
                if pair is not None:
                    readers -= {self._producers[pair.integers].name}
                if readers or name in self._outputs:
                    yield Port(pair.tensor if pair is not None else name, False, name)
                if pair is not None:
                    yield Port(pair.tensor, True, pair.integers)

    def _follow(self, name: str, nodes: dict[str, onnx.NodeProto], inputs: dict[str, Port]) -> None:
        """Take what a stage reads as an input, or what computes it from a constant or from integers in."""
        if name in self._arrays or name in inputs:
            return
        node = self._producers.get(name)
        source = node.input[0] if node is not None and node.op_type == DEQUANTIZE else ""
        if node is not None and source in self._of_integers:
            nodes[name] = node
            inputs[source] = Port(self._of_integers[source].tensor, True, source)
        elif self._reading is not None and node is not None and self._reading.is_constant(name):
            nodes.update({item.output[0]: item for item in self._reading.sources_of(name)})
        elif self._reading is not None and node is not None and node.name in self._reading.inserted:
            nodes[node.output[0]] = node  # Rows of a table of integers become floats.
            for item in filter(None, node.input):
                self._follow(item, nodes, inputs)
        else:
            pair = self._of_source.get(name)
            inputs[name] = Port(pair.tensor if pair is not None else name, False, name)

    def _serialized(
        self, nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Port], outputs: Sequence[Port]
    ) -> bytes:
        used = {name for node in nodes for name in reads(node)}
        graph = helper.make_graph(
            nodes,
            "stage",
            [self._info(name, with_shape=True) for name in inputs],
            [self._info(port.name, with_shape=False) for port in outputs],
            [self._arrays[name] for name in sorted(used & set(self._arrays))],
            value_info=[
                self._infos[name]
                for node in nodes
                for name in node.output
                if name in self._infos and name not in {port.name for port in outputs}
            ],
        )
        model = helper.make_model(
            graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version
        )
        model.functions.extend(self._model.functions)
        content: bytes = model.SerializeToString()
        return content

    def _info(self, name: str, *, with_shape: bool) -> onnx.ValueInfoProto:
        info = onnx.ValueInfoProto()
        info.CopyFrom(self._infos[name])
        tensor = info.type.tensor_type
        if not with_shape:
            tensor.ClearField("shape")
        elif tensor.HasField("shape") and len(tensor.shape.dim):
            # One that was inferred for another batch size would be refused.
            tensor.shape.dim[0].Clear()
        return info
