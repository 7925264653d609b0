"""Weights of a quantized graph that can saturate, with all that has to change with each of them.

A stored weight may be read by several layers, moved on the way, be quantized as the file is loaded, and share
its scale or its bias with others. What else reads one of these keeps the old one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import UnrepairableError
from ptq_cli.core.pair_sums import UnsafePairs, mates_along, unsafe_pairs
from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    DYNAMIC_LSTM,
    KERNEL_PARAMETERS,
    MATMUL_INTEGER,
    QUANTIZE,
    dequantized_by,
)
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.proof.portable_sums import CONVOLUTIONS, TRANSPOSED, SummedWeight, summed_weights
from ptq_cli.repair.safe_weights import Int64s, Rows

Use = tuple[ir.Node, int]  # a node, and which of its inputs
# Operators that only move the elements of a constant
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
# Of an operator on integers: inputs of scale and zero point, by that of the weight.
_SCALES: Mapping[str, Mapping[int, tuple[int, int]]] = {
    "DynamicQuantizeMatMul": {1: (2, 3)},
    "MatMulIntegerToFloat": {0: (2, 4), 1: (3, 5)},
    "QAttention": {1: (4, 7)},
    **dict.fromkeys(("QGemm", "QLinearConv", "QLinearMatMul"), {0: (1, 2), 3: (4, 5)}),
    DYNAMIC_LSTM: {weight: (scale, scale + 1) for weight, scale in KERNEL_PARAMETERS.items()},
}
_INTEGER_BIAS = {"QGemm": 6, "QLinearConv": 8}
_BIAS = 2  # input of Conv and Gemm


@dataclass(frozen=True, kw_only=True)
class ScaleUse:
    """A scale or a zero point of a weight, and which of its values each stored element has.

    Shapes: elements: as the stored weight.
    """

    use: Use
    value: ir.Value
    elements: Array


@dataclass(frozen=True, kw_only=True)
class BiasUse:
    """A constant bias: int32 or, where a runtime quantizes it, float.

    Attributes:
        scale: what a DequantizeLinear reads beside it; None if there is none.
    """

    use: Use
    value: ir.Value
    scale: tuple[Use, ir.Value] | None
    is_float: bool = False


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer that reads a weight.

    Attributes:
        index: of the input that reads the weight.
        places: which stored element each element is that the layer reads, with output channels first.

    Shapes: places: (O, K).
    """

    node: ir.Node
    index: int
    unsafe: UnsafePairs
    places: Int64s
    mates: Int64s
    limit: int
    filter_size: int
    bias: BiasUse | None


@dataclass(kw_only=True)
class WeightSite:
    """A stored weight with all that reads it.

    Attributes:
        readers: uses of the constant itself whose scales are all known; others keep a copy of it.
        others: whether something else reads it.
    """

    stored: ir.Value
    layers: list[Layer] = field(default_factory=list)
    scales: list[ScaleUse] = field(default_factory=list)
    zero_points: list[ScaleUse] = field(default_factory=list)
    readers: list[Use] = field(default_factory=list)
    others: str = ""

    @property
    def is_float(self) -> bool:
        """Whether the file holds floats, which a QuantizeLinear makes integers of."""
        return self.stored.dtype is not None and self.stored.dtype.is_floating_point()

    @property
    def can_saturate(self) -> bool:
        """Whether a layer that reads it can saturate."""
        return any(layer.unsafe.pairs for layer in self.layers)

    def rows(self, steps: Array) -> tuple[Rows, Int64s]:
        """Return the weight by output channel, and which stored element each is.

        Where layers read it in ways that have no rows in common, it is one row.
        """
        first = self.layers[0]
        together = [item for item in self.layers if np.array_equal(item.places, first.places)]
        limit = min(item.limit for item in self.layers)
        if len(together) == len(self.layers):
            places, mates = first.places, np.concatenate([item.mates for item in self.layers], axis=1)
            filter_size = first.filter_size
        else:
            places, filter_size = np.arange(steps.size)[None], 1
            mates = np.concatenate([_spread(item, steps.size) for item in self.layers], axis=1)
        rows = steps.reshape(-1)[places].astype(np.float32)
        return Rows(steps=rows, mates=mates, limit=limit, filter_size=filter_size), places


def _spread(layer: Layer, size: int) -> Int64s:
    """Mates of a layer as stored elements.

    Shapes: (size, orders).
    """
    found = np.full((size, layer.mates.shape[1]), -1, np.int64)
    for column, mates in enumerate(layer.mates.T):
        paired = np.flatnonzero(mates >= 0)
        found[layer.places[:, paired], column] = layer.places[:, mates[paired]]
    return found


def find_sites(model: ir.Model, target: Target) -> tuple[list[WeightSite], int]:
    """Return stored weights that can saturate, in the order of the graph, and how many layers there are.

    Raises:
        UnrepairableError: a weight that can saturate is computed, or its scale is.
    """
    sites: dict[ir.Value, WeightSite] = {}
    layers = 0
    for node in every_node(model.graph):
        counted = False
        for item in summed_weights(model, node, target):
            counted = True
            if not isinstance(item, SummedWeight):
                continue
            unsafe = unsafe_pairs(item.integers, item.rule, item.axis)
            stored = _stored(item.factor.integers)
            if stored is None:
                if unsafe.pairs:
                    raise _computed(node, item)
                continue
            site = sites.setdefault(stored, WeightSite(stored=stored))
            site.layers.append(_layer(node, item, unsafe, stored))
        layers += counted
    found = [site for site in sites.values() if site.can_saturate]
    for site in found:
        _follow(site)
    return found, layers


def _computed(node: ir.Node, item: SummedWeight) -> UnrepairableError:
    value = item.factor.integers
    return UnrepairableError(
        f"the weight of {node.op_type} '{node.name}' can saturate, and is computed from constants: "
        f"'{value.name if value is not None else ''}'",
        hint="fold the constants first, for example with onnxsim",
    )


def _stored(integers: ir.Value | None) -> ir.Value | None:
    """Return the constant that integers are, past what moves or quantizes it; None if they are computed."""
    value = integers
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in (*_MOVES, QUANTIZE):
            return None
        value = producer.inputs[0]
    return value


def _chain(read: ir.Value | None, stored: ir.Value) -> list[ir.Node]:
    """Return the nodes from a stored constant to what an operator reads, in order."""
    found = list[ir.Node]()
    while read is not None and read is not stored:
        producer = read.producer()
        assert producer is not None  # noqa: S101 - it was followed already
        found.insert(0, producer)
        read = producer.inputs[0]
    return found


def _moved(array: Array, node: ir.Node) -> Array:
    """Return an array as a node moves the elements of one."""
    if node.op_type == "Transpose":
        permutation = node.attributes.get_ints("perm", ())
        return array.transpose(permutation or None)
    if node.op_type in ("Cast", "Identity", QUANTIZE, DEQUANTIZE):
        return array
    shape = node.outputs[0].shape
    if shape is None or not shape.is_static():
        raise UnrepairableError(
            f"the shape of '{node.outputs[0].name}' is not known, which a weight is read from",
            hint="fold the constants first, for example with onnxsim",
        )
    return array.reshape(shape.numpy())


def _places(stored: ir.Value, nodes: Sequence[ir.Node]) -> Array:
    assert stored.const_value is not None  # noqa: S101 - it is a constant
    shape = stored.const_value.shape.numpy()
    found: Array = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    for node in nodes:
        found = _moved(found, node)
    return found


def _layer(node: ir.Node, item: SummedWeight, unsafe: UnsafePairs, stored: ir.Value) -> Layer:
    shape, axis = item.integers.shape, item.axis
    places = np.moveaxis(_places(stored, _chain(item.factor.read, stored)).reshape(shape), axis, 0)
    single = [1 if index == axis else size for index, size in enumerate(shape)]
    is_conv = node.op_type in CONVOLUTIONS
    return Layer(
        node=node,
        index=item.index,
        unsafe=unsafe,
        places=places.reshape(shape[axis], -1),
        mates=mates_along(item.rule, single),
        limit=item.rule.largest,
        filter_size=int(np.prod(shape[2:])) if is_conv else 1,
        bias=_bias(node),
    )


def _bias(node: ir.Node) -> BiasUse | None:
    """Return the bias of a layer, if it has a constant one."""
    if (index := _INTEGER_BIAS.get(node.op_type)) is not None:
        value = input_at(node, index)
        if value is None or value.const_value is None:
            return None
        return BiasUse(use=(node, index), value=value, scale=None)
    read = input_at(node, _BIAS) if node.op_type in ("Conv", "Gemm") else None
    dequantize = dequantized_by(read)
    if dequantize is None:
        is_float = read is not None and read.const_value is not None
        return BiasUse(use=(node, _BIAS), value=read, scale=None, is_float=True) if is_float and read else None
    value, scale = dequantize.inputs[0], dequantize.inputs[1]
    is_known = value is not None and value.const_value is not None and value.dtype == ir.DataType.INT32
    if not is_known or value is None or scale is None or scale.const_value is None:
        return None
    return BiasUse(use=(dequantize, 0), value=value, scale=((dequantize, 1), scale))


def _follow(site: WeightSite) -> None:
    """Find all scales of a stored weight, and what else reads it."""
    for use in site.stored.uses():
        scales, zeros = list[ScaleUse](), list[ScaleUse]()
        places = _places(site.stored, ())
        if reason := _walk(site, use.node, use.idx, places, scales, zeros):
            site.others = reason
            continue
        site.readers.append((use.node, use.idx))
        site.scales += scales
        site.zero_points += zeros
    if site.stored.is_graph_output():
        site.others = f"'{site.stored.name}' is an output of the graph"


def _walk(
    site: WeightSite,
    node: ir.Node,
    index: int,
    places: Array,
    scales: list[ScaleUse],
    zeros: list[ScaleUse],
) -> str:
    """Add the scales that a use of a weight leads to; return what else it leads to, or an empty text."""
    who = f"{node.op_type} '{node.name}' reads '{site.stored.name}'"
    if node.op_type in (*_MOVES, QUANTIZE) and index == 0:
        if node.op_type == QUANTIZE and not _add(site, node, (1, 2), places, scales, zeros):
            return who
        if node.outputs[0].is_graph_output():
            return who
        moved = _moved(places, node)
        reasons = (
            _walk(site, use.node, use.idx, moved, scales, zeros) for use in node.outputs[0].uses()
        )
        return next(filter(None, reasons), "")
    if node.op_type == DEQUANTIZE and index == 0:
        return "" if _add(site, node, (1, 2), places, scales, zeros) else who
    if node.op_type == MATMUL_INTEGER:
        return _add_product(site, node, index, places, scales, zeros) or ""
    where = _SCALES.get(node.op_type, {}).get(index)
    return "" if where is not None and _add(site, node, where, places, scales, zeros, index) else who


def _add(
    site: WeightSite,
    node: ir.Node,
    where: tuple[int, int],
    places: Array,
    scales: list[ScaleUse],
    zeros: list[ScaleUse],
    index: int = 0,
) -> bool:
    """Add scale and zero point of a node; return whether both are constants that the elements share."""
    for at, found in zip(where, (scales, zeros), strict=True):
        value = input_at(node, at)
        if value is None:
            continue
        if value.const_value is None or node.attributes.get_int("block_size", 0):
            return False
        elements = _spread_over(value.const_value.shape.numpy(), places, node, index)
        if elements is None:
            return False
        stored = np.empty(places.size, np.int32)
        stored[places.reshape(-1)] = elements.reshape(-1)
        found.append(ScaleUse(use=(node, at), value=value, elements=stored))
    return True


def _spread_over(sizes: Sequence[int], places: Array, node: ir.Node, index: int) -> Array | None:
    """Return which value of a scale each element that a node reads has; None if that is not known."""
    count = int(np.prod(sizes, dtype=np.int64))
    numbers: Array = np.arange(count)
    if count == 1:
        return np.zeros(places.shape, np.int64)
    if node.op_type == DYNAMIC_LSTM:
        shape = [*sizes, 1, 1] if len(sizes) == 1 else [sizes[0], 1, sizes[1]]
        return np.broadcast_to(numbers.reshape(shape), places.shape)
    if node.op_type in (QUANTIZE, DEQUANTIZE):
        axis = node.attributes.get_int("axis", 1) % places.ndim
    elif node.op_type in CONVOLUTIONS:
        axis = 0
    else:
        is_turned = node.op_type in TRANSPOSED and node.attributes.get_int("transB", 0) == 1
        axis = places.ndim - (2 if is_turned or index == 0 else 1)
    if places.shape[axis] != count:
        return None
    shape = [count if at == axis else 1 for at in range(places.ndim)]
    return np.broadcast_to(numbers.reshape(shape), places.shape)


def _add_product(
    site: WeightSite,
    node: ir.Node,
    index: int,
    places: Array,
    scales: list[ScaleUse],
    zeros: list[ScaleUse],
) -> str:
    """Add the constant that a product of integers is multiplied by, and the weight's zero point."""
    found = _factor_behind(node)
    if found is None:
        return f"what '{node.name}' is multiplied by is not one constant"
    reader, at, value = found
    assert value.const_value is not None  # noqa: S101 - it was found to be a constant
    zero = input_at(node, index + 2)
    for use, item, kept in (((reader, at), value, scales), ((node, index + 2), zero, zeros)):
        if item is None:
            continue
        if item.const_value is None:
            return f"the zero point of '{node.name}' is computed"
        elements = _spread_over(item.const_value.shape.numpy(), places, node, index)
        if elements is None:
            return f"'{item.name}' has another size than the channels of '{node.name}'"
        stored = np.empty(places.size, np.int32)
        stored[places.reshape(-1)] = elements.reshape(-1)
        kept.append(ScaleUse(use=use, value=item, elements=stored))
    return ""


def _factor_behind(product: ir.Node) -> tuple[ir.Node, int, ir.Value] | None:
    """Return the first constant that a product of integers is multiplied by, with its reader."""
    node = product
    while True:
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or uses[0].node.op_type not in ("Cast", "Mul"):
            return None
        node = uses[0].node
        if node.op_type != "Mul":
            continue
        other = node.inputs[1 - uses[0].idx]
        inner = other.producer() if other is not None else None
        places = [(node, 1 - uses[0].idx)]
        if inner is not None and inner.op_type == "Mul":
            places += [(inner, 0), (inner, 1)]
        for reader, index in places:
            value = reader.inputs[index]
            if value is not None and value.const_value is not None:
                return reader, index, value
