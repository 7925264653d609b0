"""Twins: a quantized graph beside the float graph that it was made from; parts of a graph as models.

Read from the two graphs alone, whichever quantizers made the second.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import InvalidOnnxError, UnsupportedFormatError
from ptq_cli.core.formats import FLOATS
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.graph_reading import every_node, nested_graphs
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    DYNAMIC_LSTM,
    KERNEL_PARAMETERS,
    QUANTIZE,
    integer_clip_behind,
    integers_of,
)
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import dynamic_parts
from ptq_cli.runtime.session import Session


def part_of(
    model: ir.Model, nodes: Sequence[ir.Node], inputs: Iterable[ir.Value], outputs: Iterable[ir.Value]
) -> ir.Model:
    """Return nodes of a main graph as a model, with the constants that they read; tensors are shared."""
    constants = dict.fromkeys(value for node in nodes for value in values_read(node) if is_constant(value))
    view = ir.GraphView(
        tuple(inputs),
        tuple(outputs),
        nodes=nodes,
        initializers=tuple(constants),
        opset_imports=model.graph.opset_imports,
        name="part",
    )
    return ir.Model(view.clone(), ir_version=model.ir_version, functions=tuple(model.functions.values()))


def readers_by_value(graph: ir.Graph) -> Mapping[ir.Value, Sequence[ir.Node]]:
    """Return the nodes that read each value, in order; a node reads what graphs inside it read."""
    readers: dict[ir.Value, dict[ir.Node, None]] = {}
    for node in graph:
        for value in values_read(node):
            readers.setdefault(value, {})[node] = None
    return {value: tuple(nodes) for value, nodes in readers.items()}


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, those that graphs inside it take from around it among them."""
    yield from (value for value in node.inputs if value is not None)
    inside = (value for graph in nested_graphs(node) for inner in every_node(graph) for value in inner.inputs)
    yield from (value for value in inside if value is not None and value.graph is node.graph)


def computed_integers(
    model: ir.Model, nodes: Sequence[ir.Node], value: ir.Value, inputs: Mapping[ir.Value, Array]
) -> Array:
    """Return a value as int32 that ONNX Runtime computes by some nodes from constants and ``inputs``."""
    if not nodes:
        with mapped(value) as array:
            return array.astype(np.int32)
    part = part_of(model, nodes, inputs, ())
    output_as_int32(part, value.name)
    feeds = {
        item.name or "": array.astype(item.dtype.numpy() if item.dtype is not None else np.float32)
        for item, array in inputs.items()
    }
    return Session(serialize(part), threads=1, optimize=False).run(feeds)[0]


def output_as_int32(part: ir.Model, name: str | None) -> None:
    """Add an output: what is read may be an initializer, which cannot be one, but a Cast of it can."""
    names = {item.name: item for node in part.graph for item in (*node.inputs, *node.outputs) if item}
    cast = ir.node("Cast", [names[name]], {"to": ir.DataType.INT32})
    part.graph.append(cast)
    part.graph.outputs.append(cast.outputs[0])


@dataclass(frozen=True)
class ActivationPair:
    """The QuantizeLinear of a tensor of the float model, with the DequantizeLinears behind it; per tensor."""

    tensor: str
    quantize: ir.Node
    parameters: QuantParameters

    @property
    def source(self) -> ir.Value:
        """The tensor in the quantized model, as floats before the pair."""
        source = self.quantize.inputs[0]
        assert source is not None  # noqa: S101 - a QuantizeLinear has it
        return source

    @property
    def integers(self) -> ir.Value:
        """The tensor as integers, behind the Clip that keeps them within fewer bits."""
        return integers_of(self.quantize)

    @property
    def quantizers(self) -> tuple[ir.Node, ...]:
        """The QuantizeLinear that makes integers of it, and the Clip behind that if there is one."""
        clip = integer_clip_behind(self.quantize)
        return (self.quantize,) if clip is None else (self.quantize, clip)


@dataclass(frozen=True, kw_only=True)
class QuantizedConstant:
    """A constant that the float model holds as floats and the quantized one as integers.

    Attributes:
        value: what the node of the quantized model reads, computed from constants alone.
        sources: the nodes that compute it, in order; none if an operator reads the integers of the file.
    """

    floats: ir.Value
    node: ir.Node
    input_index: int
    value: ir.Value
    sources: tuple[ir.Node, ...]

    @property
    def tensor(self) -> str:
        """Its name in the float model."""
        return self.floats.name or ""

    @property
    def stored(self) -> ir.Value:
        """The constant in the file: integers, or floats that it makes integers of as it is loaded."""
        stored = self.sources[0].inputs[0] if self.sources else self.value
        assert stored is not None  # noqa: S101 - what computes a constant reads one
        return stored


class TwinGraphs:
    """A float model and the quantized one that was made from it.

    Attributes:
        inserted: the nodes that only the quantized graph holds, those of nested graphs among them.
        pairs: activation pairs of the main graph that the float graph does not hold, in order, by the
            tensor's float name. Those of nested graphs are seen from inside only.
        constants: quantized constants, in the order of the nodes.
        dynamic: layers that make integers of their activations at each run, by name.
        containers: names of the nodes of the main graph in whose nested graphs something is quantized.
    """

    def __init__(self, float_model: ir.Model, quantized_model: ir.Model) -> None:
        """Read both graphs."""
        self.float_model, self.quantized_model = float_model, quantized_model
        _require_integers(quantized_model)
        own = {node.name for node in every_node(float_model.graph)}
        self._order = {node: index for index, node in enumerate(every_node(quantized_model.graph))}
        self.inserted = frozenset(node for node in self._order if node.name not in own)
        self.readers = readers_by_value(quantized_model.graph)
        self.dynamic = dynamic_parts(quantized_model)
        self.pairs = {pair.tensor: pair for pair in self._find_pairs()}
        self.constants = tuple(self._find_constants())
        self.containers = frozenset(
            node.name or ""
            for node in quantized_model.graph
            if any(inner in self.inserted for graph in nested_graphs(node) for inner in every_node(graph))
        )

    def readers_of(self, pair: ActivationPair) -> tuple[str, ...]:
        """Return the names of the nodes that read what a pair restores, in order."""
        restored = (node for node, _ in pair.integers.uses() if node.op_type == DEQUANTIZE)
        readers = {reader for node in restored for reader, _ in node.outputs[0].uses()} - self.inserted
        return tuple(node.name or "" for node in sorted(readers, key=self._order.__getitem__))

    def _is_constant(self, value: ir.Value) -> bool:
        """Tell whether a value of the quantized graph is computed from constants by inserted nodes."""
        producer = value.producer()
        if producer is None or producer not in self.inserted:
            return is_constant(value)
        return all(self._is_constant(item) for item in producer.inputs if item is not None)

    def _find_pairs(self) -> Iterator[ActivationPair]:
        graph = self.float_model.graph
        floats = {value.name for value in graph.inputs}
        floats |= {value.name for node in graph for value in node.outputs}
        for node in self.quantized_model.graph:
            source = node.inputs[0] if node.op_type == QUANTIZE and node in self.inserted else None
            if source is None or self._is_constant(source) or source.producer() in self.inserted:
                continue  # Also what an operator's integer form computes on the way.
            parameters = grid_of(node).parameters
            if parameters is None:
                raise InvalidOnnxError(
                    f"'{node.name}' of the quantized model has no single scale and zero point",
                    hint="run ptq export again, and pass the model that it wrote",
                )
            # Where the tensor is an output of the model, its name went to what stands behind the pair.
            behind = (reader.outputs[0] for reader, _ in integers_of(node).uses())
            named = source if source.name in floats else next(behind)
            yield ActivationPair(named.name or "", node, parameters)

    def _find_constants(self) -> Iterator[QuantizedConstant]:
        by_name = {node.name: node for node in every_node(self.float_model.graph)}
        for node in every_node(self.quantized_model.graph):
            before = by_name.get(node.name)
            if before is None:
                continue
            if (part := self.dynamic.get(node.name or "")) is not None:
                yield _quantized(before.inputs[1], part.node, 1, part.integers)
                continue
            # An integer form may have more inputs than the operator that it stands for.
            for index, (floats, value) in enumerate(zip(before.inputs, node.inputs, strict=False)):
                if floats is None or value is None or not is_constant(floats):
                    continue
                is_integer = node.op_type == DYNAMIC_LSTM and index in KERNEL_PARAMETERS
                if is_constant(value) and not is_integer:
                    continue
                if self._is_constant(value):
                    yield _quantized(floats, node, index, value)


def _require_integers(model: ir.Model) -> None:
    for node in every_node(model.graph):
        name = grid_of(node).dtype.name.lower() if node.op_type == DEQUANTIZE else ""
        if name in FLOATS:
            raise UnsupportedFormatError(
                f"'{node.name}' restores {name}; ptq analyze and recovery.rungs=round need integers",
                hint="use ptq evaluate and ptq verify, and leave recovery.rungs=round out",
            )


def _quantized(floats: ir.Value | None, node: ir.Node, index: int, value: ir.Value) -> QuantizedConstant:
    assert floats is not None  # noqa: S101 - a layer has a weight
    sources = tuple(dict.fromkeys(_sources_of(value)))
    return QuantizedConstant(floats=floats, node=node, input_index=index, value=value, sources=sources)


def _sources_of(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that compute a constant, each behind those that it reads from."""
    producer = value.producer()
    if producer is None:
        return
    for item in producer.inputs:
        if item is not None:
            yield from _sources_of(item)
    yield producer
