"""Layers that make integers of their activations at each run, in operators of ONNX.

Integers of each row, symmetric around 128, which a MatMulInteger multiplies with those of the weight:

    s = max |x| / 127 along the last axis        Abs, ReduceMax, Max, Mul
    q = round(x / s) + 128                       Div, QuantizeLinear
    y = (q - 128) w * s_w * s                    MatMulInteger, Cast, Mul, Mul

Integers of the whole tensor, with a zero point, as DynamicQuantizeLinear finds them:

    y = (q - z) w * (s * s_w)                    MatMulInteger or ConvInteger, Cast, Mul

Requires: the weight is stored as integers with a zero point of 0. Ensures: the last node has the layer's name
and result; names of the others begin with the layer's, or with that of the tensor whose integers they make,
which layers that read it share.

Source:
    ONNX DynamicQuantizeLinear, MatMulInteger and ConvInteger. Rows: Yao et al., "ZeroQuant",
    https://arxiv.org/abs/2206.01861, section 3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import RESULT, FreshNames, input_at, rank_of, short_name
from ptq_cli.models.integer_operators import (
    CONV_INTEGER,
    DYNAMIC_QUANTIZE,
    MATMUL_INTEGER,
    MIDDLE,
    OF_LAYER,
    OF_TENSOR,
    SMALLEST,
    STEPS,
)
from ptq_cli.plan.dynamic_layers import ROW
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.pair_nodes import add_initializer, put_in_front, take_place

BIAS = 2
"""Which input of a Conv or a Gemm it is."""
CHANNELS = 2
"""Axes of a Conv's weight that are not those of a place."""
AXES_AS_INPUT = 18
"""The first opset in which ReduceMax takes its axes as an input."""


@dataclass(frozen=True)
class _Integers:
    """A tensor as integers: these, their zero point, and the scale of each row or of all."""

    values: ir.Value
    zero_point: ir.Value
    scale: ir.Value


class DynamicLayers:
    """Writes the layers of one graph; what two of them need is there once."""

    def __init__(self, graph: ir.Graph, names: FreshNames) -> None:
        self._graph, self._names = graph, names
        self._integers: dict[tuple[ir.Value, object, str], _Integers] = {}
        self._constants: dict[str, ir.Value] = {}

    def write(self, node: ir.Node, site: WeightSite, integers: ir.Value, scale: ir.Value) -> None:
        """Replace a layer, given the integers of its weight and a scale that broadcasts to the result."""
        source, name = node.inputs[0], node.name or node.op_type
        assert source is not None  # noqa: S101 - a layer with a weight reads something else, too
        read = self._read(node, source, site.dynamic)
        is_conv = node.op_type == "Conv"
        operator = CONV_INTEGER if is_conv else MATMUL_INTEGER
        attributes = dict(node.attributes) if is_conv else {}
        place = _Place(node, self._names, f"{short_name(name)}{OF_LAYER}")
        product = place.put(
            operator, [read.values, integers, read.zero_point], ir.DataType.INT32, attributes=attributes
        )
        floats = place.put("Cast", [product], ir.DataType.FLOAT, attributes={"to": int(ir.DataType.FLOAT)})
        if site.dynamic == ROW:
            floats = place.put("Mul", [floats, scale])
            factors = [floats, read.scale]
        else:
            factors = [floats, place.put("Mul", [read.scale, scale])]
        bias = input_at(node, BIAS)
        if bias is None:
            last = ir.node("Mul", factors, name=node.name)
        else:
            added = [place.put("Mul", factors), self._spread(bias, node) if is_conv else bias]
            last = ir.node("Add", added, name=node.name)
        take_place(node, last)

    def _read(self, node: ir.Node, source: ir.Value, dynamic: str) -> _Integers:
        key = (source, node.graph, dynamic)
        if key not in self._integers:
            place = _Place(node, self._names, f"{short_name(source.name or '')}{OF_TENSOR}")
            self._integers[key] = (self._rows if dynamic == ROW else _tensor)(place, source)
        return self._integers[key]

    def _rows(self, place: "_Place", source: ir.Value) -> _Integers:
        one, middle = self._constant("unit", np.float32(1)), self._constant("middle", np.uint8(MIDDLE))
        magnitude = place.put("Abs", [source])
        if self._graph.opset_imports[""] >= AXES_AS_INPUT:
            axes = self._constant("last_axis", np.array([-1], np.int64))
            largest = place.put("ReduceMax", [magnitude, axes], attributes={"keepdims": 1})
        else:
            largest = place.put("ReduceMax", [magnitude], attributes={"axes": [-1], "keepdims": 1})
        positive = place.put("Max", [largest, self._constant("smallest", np.float32(SMALLEST))])
        scale = place.put("Mul", [positive, self._constant("step", np.float32(1 / STEPS))])
        quotient = place.put("Div", [source, scale])
        return _Integers(
            place.put("QuantizeLinear", [quotient, one, middle], ir.DataType.UINT8), middle, scale
        )

    def _spread(self, bias: ir.Value, node: ir.Node) -> ir.Value:
        """Return the bias of a Conv, a vector, so that it broadcasts to the result."""
        assert bias.const_value is not None  # noqa: S101 - the plan refuses any other
        array = spread(bias.const_value.numpy(), (rank_of(node.inputs[1]) or 0) - CHANNELS)
        return add_initializer(self._graph, self._names.claim(f"{bias.name}.channels"), array)

    def _constant(self, role: str, number: np.generic | Array) -> ir.Value:
        if role not in self._constants:
            name = self._names.claim(f"dynamic.{role}")
            self._constants[role] = add_initializer(self._graph, name, np.asarray(number))
        return self._constants[role]


class _Place:
    """Puts operators in front of a layer, under a common beginning of their names."""

    def __init__(self, node: ir.Node, names: FreshNames, prefix: str) -> None:
        self._node, self._names, self._prefix = node, names, prefix

    def put(
        self,
        op_type: str,
        inputs: list[ir.Value],
        dtype: ir.DataType = ir.DataType.FLOAT,
        *,
        attributes: Mapping[str, Any] | None = None,
        outputs: int = 1,
    ) -> ir.Value:
        """Put an operator there, and return its first result."""
        name = self._names.claim(f"{self._prefix}{op_type}")
        node = ir.node(op_type, inputs, attributes or {}, name=name, num_outputs=outputs)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}{RESULT}{index or ''}"
        node.outputs[0].type = ir.TensorType(dtype)
        put_in_front(self._node, node)
        return node.outputs[0]


def _tensor(place: _Place, source: ir.Value) -> _Integers:
    values = place.put(DYNAMIC_QUANTIZE, [source], ir.DataType.UINT8, outputs=3)
    producer = values.producer()
    assert producer is not None  # noqa: S101 - it was made just now
    _, scale, zero_point = producer.outputs
    scale.type, zero_point.type = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.UINT8)
    return _Integers(values, zero_point, scale)


def spread(channels: Array, axes: int) -> Array:
    """Return one number for each channel, with as many axes behind as the channels of a Conv have.

    Example:
        >>> spread(np.zeros(8), 2).shape
        (8, 1, 1)
    """
    return channels.reshape(-1, *([1] * axes))
