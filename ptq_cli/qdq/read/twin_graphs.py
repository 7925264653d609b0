"""What a quantized model's file holds: its pairs of Q and DQ, and its constants as it computes with them.

Read from the graph alone, whichever quantizers made it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import IntegerFormat

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class ActivationPair:
    """A QuantizeLinear of a computed tensor, with the DequantizeLinears behind it.

    Attributes:
        tensor: the tensor's name in the float model.
        source: its name in the quantized model, as floats before the pair.
        integers: name of the QuantizeLinear's output.
        parameters: scale and zero point; per tensor.
    """

    tensor: str
    source: str
    integers: str
    parameters: QuantParameters


@dataclass(frozen=True, kw_only=True)
class QuantizedConstant:
    """A constant that the float model holds as floats and the quantized one as integers.

    Attributes:
        tensor: its name in the float model.
        node: name of the node that reads it.
        input_index: as which input.
        value: name of what the node reads in the quantized model, computed from constants alone.
        sources: the nodes that compute it, in order.
    """

    tensor: str
    node: str
    input_index: int
    value: str
    sources: tuple[onnx.NodeProto, ...]


class Reading:
    """A quantized graph beside the float graph that it was made from.

    Attributes:
        float_graph, graph: the two.
        pairs: activation pairs that the float graph does not hold, in order, by the tensor's float name.
        constants: quantized constants, in the order of the nodes.
        inserted: names of the nodes that only the quantized graph holds.
    """

    def __init__(self, float_model: onnx.ModelProto, quantized_model: onnx.ModelProto) -> None:
        """Read both graphs."""
        self.float_graph, self.graph = float_model.graph, quantized_model.graph
        own = {node.name for node in self.float_graph.node}
        self.inserted = frozenset(node.name for node in self.graph.node if node.name not in own)
        self._arrays = {item.name: item for item in self.graph.initializer}
        self.producers = {name: node for node in self.graph.node for name in node.output if name}
        pairs = list(self._find_pairs())
        self.pairs = {pair.tensor: pair for pair in pairs}
        self.constants = tuple(self._find_constants())
        restored = {node.output[0]: node.input[0] for node in self.graph.node if node.op_type == DEQUANTIZE}
        self._readers: dict[str, list[str]] = {}
        for node in self.graph.node:
            for name in reads(node):
                if name in restored and node.name not in self.inserted:
                    self._readers.setdefault(restored[name], []).append(node.name)

    def is_constant(self, name: str) -> bool:
        """Tell whether a value of the quantized graph is computed from constants by inserted nodes."""
        if name in self._arrays:
            return True
        node = self.producers.get(name)
        if node is None or node.name not in self.inserted:
            return False
        return all(self.is_constant(item) for item in node.input if item)

    def sources_of(self, name: str) -> tuple[onnx.NodeProto, ...]:
        """Return the inserted nodes that compute a constant, in order."""
        node = self.producers.get(name)
        if node is None:
            return ()
        before = [source for item in node.input if item for source in self.sources_of(item)]
        unique = {source.output[0]: source for source in [*before, node]}
        return tuple(unique.values())

    def readers_of(self, pair: ActivationPair) -> tuple[str, ...]:
        """Return the names of the nodes that read what a pair restores, in order."""
        return tuple(dict.fromkeys(self._readers.get(pair.integers, ())))

    def parameters_of(self, node: onnx.NodeProto) -> QuantParameters:
        """Return what a QuantizeLinear quantizes with."""
        scale = numpy_helper.to_array(self._arrays[node.input[1]])
        zeros = self._arrays[node.input[2]]
        name = helper.tensor_dtype_to_string(zeros.data_type).removeprefix("TensorProto.").lower()
        signed, bits = not name.startswith("u"), int(name.lstrip("uint"))
        zero_point = numpy_helper.to_array(zeros).astype(np.int64)
        return QuantParameters(scale.astype(np.float32), zero_point, IntegerFormat(bits, signed=signed))

    def _find_pairs(self) -> Iterator[ActivationPair]:
        floats = {info.name for info in self.float_graph.input}
        floats |= {name for node in self.float_graph.node for name in node.output}
        restored = {node.input[0]: node.output[0] for node in self.graph.node if node.op_type == DEQUANTIZE}
        for node in self.graph.node:
            if node.op_type != QUANTIZE or node.name not in self.inserted or self.is_constant(node.input[0]):
                continue
            # Where the tensor is an output of the model, its name went to what stands behind the pair.
            tensor = node.input[0] if node.input[0] in floats else restored[node.output[0]]
            yield ActivationPair(tensor, node.input[0], node.output[0], self.parameters_of(node))

    def _find_constants(self) -> Iterator[QuantizedConstant]:
        held = {item.name for item in self.float_graph.initializer}
        by_name = {node.name: node for node in self.float_graph.node}
        for node in self.graph.node:
            before = by_name.get(node.name)
            if before is None:
                continue
            for index, (was, name) in enumerate(zip(before.input, node.input, strict=True)):
                if name and was in held and name not in self._arrays and self.is_constant(name):
                    yield QuantizedConstant(
                        tensor=was,
                        node=node.name,
                        input_index=index,
                        value=name,
                        sources=self.sources_of(name),
                    )


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, those that graphs inside it take from around it among them."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            yield from _captured(graph)


def _captured(graph: onnx.GraphProto) -> Iterator[str]:
    own = {item.name for item in (*graph.input, *graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    inner: Iterable[str] = [name for node in graph.node for name in reads(node)]
    yield from (name for name in (*inner, *(item.name for item in graph.output)) if name not in own)
