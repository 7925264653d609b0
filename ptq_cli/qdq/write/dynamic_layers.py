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
from ptq_cli.models.graph_reading import RESULT, input_at, rank_of, short_name
from ptq_cli.models.pair_operators import (
    CONV_INTEGER,
    DYNAMIC_QUANTIZE,
    MATMUL_INTEGER,
    OF_LAYER,
    OF_TENSOR,
    ROW_MIDDLE,
    ROW_STEPS,
    SMALLEST,
)
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.new_nodes import NewNodes, put_in_front, take_place
from ptq_cli.recipe.declaration import ROW

_BIAS = 2  # input of a Conv or a Gemm
AXES_AS_INPUT = 18  # the first opset in which ReduceMax takes its axes as an input


@dataclass(frozen=True)
class _Integers:
    """A tensor as integers: these, their zero point, and the scale of each row or of all."""

    values: ir.Value
    zero_point: ir.Value
    scale: ir.Value


class DynamicLayers:
    """Writes the layers of one graph; what two of them need is there once."""

    def __init__(self, new: NewNodes) -> None:
        self._new = new
        self._integers: dict[tuple[ir.Value, object, str], _Integers] = {}
        self._constants: dict[str, ir.Value] = {}

    def write(self, node: ir.Node, site: WeightSite, integers: ir.Value, scale: ir.Value) -> None:
        """Replace a layer, given the integers of its weight and a scale that broadcasts to the result."""
        source = node.inputs[0]
        assert source is not None  # noqa: S101 - a layer with a weight reads something else, too
        read = self._read(node, source, site.dynamic)
        is_conv = node.op_type == "Conv"
        layer = _Prefixed(self._new, node, f"{short_name(node.name or node.op_type)}{OF_LAYER}")
        product = layer.put(
            CONV_INTEGER if is_conv else MATMUL_INTEGER,
            [read.values, integers, read.zero_point],
            ir.DataType.INT32,
            attributes=dict(node.attributes) if is_conv else {},
        )
        floats = layer.put("Cast", [product], attributes={"to": int(ir.DataType.FLOAT)})
        if site.dynamic == ROW:
            factors = [layer.put("Mul", [floats, scale]), read.scale]
        else:
            factors = [floats, layer.put("Mul", [read.scale, scale])]
        bias = input_at(node, _BIAS)
        if bias is None:
            take_place(node, ir.node("Mul", factors, name=node.name))
            return
        added = [layer.put("Mul", factors), self._spread(bias, node) if is_conv else bias]
        take_place(node, ir.node("Add", added, name=node.name))

    def _read(self, node: ir.Node, source: ir.Value, dynamic: str) -> _Integers:
        key = (source, node.graph, dynamic)
        if key not in self._integers:
            tensor = _Prefixed(self._new, node, f"{short_name(source.name or '')}{OF_TENSOR}")
            self._integers[key] = (self._rows if dynamic == ROW else _whole)(tensor, source)
        return self._integers[key]

    def _rows(self, tensor: "_Prefixed", source: ir.Value) -> _Integers:
        one, middle = self._constant("unit", np.float32(1)), self._constant("middle", np.uint8(ROW_MIDDLE))
        magnitude = tensor.put("Abs", [source])
        if self._new.graph.opset_imports[""] >= AXES_AS_INPUT:
            axes = self._constant("last_axis", np.array([-1], np.int64))
            largest = tensor.put("ReduceMax", [magnitude, axes], attributes={"keepdims": 1})
        else:
            largest = tensor.put("ReduceMax", [magnitude], attributes={"axes": [-1], "keepdims": 1})
        positive = tensor.put("Max", [largest, self._constant("smallest", np.float32(SMALLEST))])
        scale = tensor.put("Mul", [positive, self._constant("step", np.float32(1 / ROW_STEPS))])
        quotient = tensor.put("Div", [source, scale])
        values = tensor.put("QuantizeLinear", [quotient, one, middle], ir.DataType.UINT8)
        return _Integers(values, middle, scale)

    def _spread(self, bias: ir.Value, node: ir.Node) -> ir.Value:
        """Return the bias of a Conv, a vector, so that it broadcasts to the result."""
        assert bias.const_value is not None  # noqa: S101 - the plan refuses any other
        array = spread(bias.const_value.numpy(), rank_of(node.inputs[1]) or 0)
        return self._new.constant(f"{bias.name}.channels", array)

    def _constant(self, role: str, number: np.generic | Array) -> ir.Value:
        if role not in self._constants:
            self._constants[role] = self._new.constant(f"dynamic.{role}", number)
        return self._constants[role]


@dataclass(frozen=True)
class _Prefixed:
    """Puts operators in front of a layer, under a common beginning of their names."""

    new: NewNodes
    layer: ir.Node
    prefix: str

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
        name = self.new.claim(f"{self.prefix}{op_type}")
        node = ir.node(op_type, inputs, attributes or {}, name=name, num_outputs=outputs)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}{RESULT}{index or ''}"
        node.outputs[0].type = ir.TensorType(dtype)
        put_in_front(self.layer, node)
        return node.outputs[0]


def _whole(tensor: _Prefixed, source: ir.Value) -> _Integers:
    values = tensor.put(DYNAMIC_QUANTIZE, [source], ir.DataType.UINT8, outputs=3)
    producer = values.producer()
    assert producer is not None  # noqa: S101 - it was made just now
    _, scale, zero_point = producer.outputs
    scale.type, zero_point.type = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.UINT8)
    return _Integers(values, zero_point, scale)


def spread(channels: Array, rank: int) -> Array:
    """Return one number for each channel of a Conv, with axes behind as a weight of this rank has.

    Example:
        >>> spread(np.zeros(8), 4).shape
        (8, 1, 1)
    """
    return channels.reshape(-1, *([1] * (rank - 2)))
