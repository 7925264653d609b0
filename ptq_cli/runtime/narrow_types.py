"""Models with 4-bit floats, E4M3 or float16 between pairs, as ONNX Runtime can compute them.

It knows no DequantizeLinear of 4-bit floats: stored ones become the float32 that they stand for, and those
that TensorRT makes at each run are rounded by standard operators, equal to ``core.numbers.float_rounding``.

Its optimizer takes the narrow types of pairs for integers. Of each float bias between quantized tensors it
makes one of int32, whose scale is the product of two: of float16 ones that becomes 0. A Relu before a
QuantizeLinear to E4M3 it takes for needless. A MatMul of E4M3 values goes to its kernel for int8, so that the
model cannot be loaded.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto

from ptq_cli.core.formats import FLOAT4_E2M1
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, every_node
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    DOMAIN,
    FP4_BLOCK,
    FP4_DYNAMIC_QUANTIZE,
    is_dynamic_quantize,
    is_four_bit,
)

FOUR_BIT_FIELD = b"\x10" + bytes([onnx.TensorProto.FLOAT4E2M1])  # of a serialized tensor type


def has_four_bits(content: bytes) -> bool:
    """Return whether a serialized model may hold 4-bit floats."""
    if FP4_DYNAMIC_QUANTIZE.encode() not in content and FOUR_BIT_FIELD not in content:
        return False
    graph = onnx.ModelProto.FromString(content).graph
    return any(tensor.data_type == onnx.TensorProto.FLOAT4E2M1 for tensor in graph.initializer) or any(
        (node.domain, node.op_type) == (DOMAIN, FP4_DYNAMIC_QUANTIZE) for node in graph.node
    )


def without_four_bits(content: bytes) -> bytes:
    """Return a serialized model without 4-bit floats, which computes the same.

    Requires: constants inside the file, and blocks of 16 along the last axis. Ensures: names of what other
    operators compute are as they were.
    """
    model = ir.from_proto(onnx.ModelProto.FromString(content))
    names = FreshNames.of(model.graph)
    for node in list(every_node(model.graph)):
        source = node.inputs[0] if is_four_bit(node) else None
        if is_dynamic_quantize(node):
            _round_at_each_run(model, node, names)
        elif source is not None and source.const_value is not None:
            _store_floats(model, node, source.const_value.numpy())
    for node in reversed(list(every_node(model.graph))):
        unread = not any(value.uses() or value.is_graph_output() for value in node.outputs)
        if unread and node.graph is not None:
            node.graph.remove(node, safe=True)
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del model.graph.initializers[name]
    model.opset_imports.pop(DOMAIN, None)
    serialized: bytes = ir.to_proto(model).SerializeToString()
    return serialized


def _store_floats(model: ir.Model, node: ir.Node, values: Array) -> None:
    scales = _constant(node.inputs[1])
    size = node.attributes.get_int("block_size", FP4_BLOCK)
    floats = values.astype(np.float32) * np.repeat(scales, size, axis=-1)
    output = node.outputs[0]
    value = ir.Value(
        name=f"{output.name}.decoded", const_value=ir.tensor(floats, name=f"{output.name}.decoded")
    )
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(floats.shape)
    model.graph.register_initializer(value)
    output.replace_all_uses_with(value)


def _constant(value: ir.Value | None) -> npt.NDArray[np.float32]:
    """Return the scales of blocks, which are constants or the product of two."""
    if value is None:
        raise ValueError("blocks have scales")
    if value.const_value is not None:
        return value.const_value.numpy().astype(np.float32)
    producer = value.producer()
    if producer is None or producer.op_type != DEQUANTIZE:
        raise ValueError(f"the scales '{value.name}' of stored values are computed")
    scales, one = producer.inputs[:2]
    return np.multiply(_constant(scales), _constant(one))


def _round_at_each_run(model: ir.Model, quantize: ir.Node, names: FreshNames) -> None:
    maker = _Maker(model.graph, quantize, names)
    x, one = quantize.inputs[:2]
    wide = maker.add("Cast", x, to=int(ir.DataType.FLOAT))
    shape = maker.add("Shape", wide)
    blocks = maker.add("Reshape", wide, maker.add("Concat", *maker.split_shape(shape), axis=0))
    largest = maker.add(
        "ReduceMax", maker.add("Abs", blocks), maker.constant(np.asarray([-1], np.int64)), keepdims=1
    )
    unit = maker.add("Mul", one, maker.constant(np.float32(FLOAT4_E2M1.largest)))
    grid = (maker.constant(np.float32(1.0)), maker.typed_zero())
    own = maker.add(
        "DequantizeLinear", maker.add("QuantizeLinear", maker.add("Div", largest, unit), *grid), *grid
    )
    scale = maker.add("Mul", own, one)
    empty = maker.add("Equal", scale, maker.constant(np.float32(0.0)))
    divisor = maker.add("Where", empty, maker.constant(np.float32(1.0)), scale)
    rounded = maker.rounded(maker.add("Div", blocks, divisor))
    restored = maker.add("Reshape", maker.add("Mul", rounded, scale), shape)
    # Whoever asks for the 4-bit floats or their scales, as for a shape, gets these numbers as float32.
    values, scales = quantize.outputs
    last = maker.constant(np.asarray([-1], np.int64))
    by_block = maker.add("Concat", *maker.split_shape(shape, 1), axis=0)
    squeezed = [maker.add("Squeeze", maker.add("Reshape", item, by_block), last) for item in (own, scale)]
    for found, output in ((values, restored), (scales, squeezed[1])):
        for node in [use.node for use in found.uses() if use.node.op_type == DEQUANTIZE and use.idx == 0]:
            node.outputs[0].replace_all_uses_with(output)
    scales.replace_all_uses_with(squeezed[0])
    values.replace_all_uses_with(maker.add("Reshape", rounded, shape))


class _Maker:
    """Adds nodes in front of one, each with one result."""

    def __init__(self, graph: ir.Graph, before: ir.Node, names: FreshNames) -> None:
        self._graph, self._before, self._names = graph, before, names

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: int) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, name=self._names.claim(f"{self._before.name}/{op_type}"))
        node.outputs[0].name = self._names.claim(f"{node.name}.output")
        assert isinstance(self._before.graph, ir.Graph)  # noqa: S101 - the caller has asked
        self._before.graph.insert_before(self._before, [node])
        return node.outputs[0]

    def constant(self, array: Array | np.generic) -> ir.Value:
        name = self._names.claim(f"{self._before.name}/constant")
        tensor = ir.tensor(np.asarray(array), name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(np.shape(array)), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self._graph.register_initializer(value)
        return value

    def typed_zero(self) -> ir.Value:
        """Add a zero point of E4M3."""
        return self.constant(np.zeros((), ir.DataType.FLOAT8E4M3FN.numpy()))

    def split_shape(self, shape: ir.Value, size: int = FP4_BLOCK) -> tuple[ir.Value, ir.Value]:
        """Return the parts of a shape whose last axis is divided into blocks of so many."""
        ends = (self.constant(np.asarray([0], np.int64)), self.constant(np.asarray([-1], np.int64)))
        return self.add("Slice", shape, *ends), self.constant(np.asarray([-1, size], np.int64))

    def rounded(self, x: ir.Value) -> ir.Value:
        """Round to E2M1: to multiples of 1/2 below 2, of 1 below 4, and of 2 up to 6."""
        bounded = self.add("Min", self.add("Abs", x), self.constant(np.float32(FLOAT4_E2M1.largest)))
        half, one, two, four = (self.constant(np.float32(number)) for number in (0.5, 1.0, 2.0, 4.0))
        upper = self.add("Where", self.add("Less", bounded, four), one, two)
        step = self.add("Where", self.add("Less", bounded, two), half, upper)
        steps = self.add("Mul", self.add("Round", self.add("Div", bounded, step)), step)
        return self.add("Mul", steps, self.add("Sign", x))


BIAS_QUANTIZATION = "WeightBiasQuantization"  # a step of ONNX Runtime's optimizer
FEW_BITS = frozenset({TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1})
NARROW = FEW_BITS | {TensorProto.FLOAT16, TensorProto.BFLOAT16}


@dataclass(frozen=True)
class DisabledOptimizers:
    """Steps of ONNX Runtime's optimizer that must not run on a model."""

    optimizers: tuple[str, ...] = ()
    everything: bool = False


def disabled_optimizers(content: bytes) -> DisabledOptimizers:
    """Return the steps of ONNX Runtime's optimizer that would change the results of a serialized model.

    Of a model whose pairs have integers and scales of float32, nothing.
    """
    if DEQUANTIZE.encode() not in content:
        return DisabledOptimizers()
    graph = onnx.ModelProto.FromString(content).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    read = {types.get(name) for node in graph.node if node.op_type == DEQUANTIZE for name in node.input}
    if not read & NARROW:
        return DisabledOptimizers()
    return DisabledOptimizers((BIAS_QUANTIZATION,), everything=bool(read & FEW_BITS))
