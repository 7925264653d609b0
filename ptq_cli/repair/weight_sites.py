"""Weights of a quantized graph that can saturate, with all that has to change with each of them.

A stored weight may be read by several layers, moved on the way, be quantized as the file is loaded, and share
its scale or its bias with others. What else reads one of these keeps the old one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import UnrepairableError
from ptq_cli.core.pair_sums import UnsafePairs, mates_along, unsafe_pairs
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
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.proof.portable_sums import CONVOLUTIONS, IN_PAIRS, TRANSPOSED, SummedWeight, summed_weights
from ptq_cli.repair.raw_file import ConstantReader
from ptq_cli.repair.safe_weights import Elements, PairPositions, WeightRows

# Operators that only move the elements of a constant
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_KEEPING = ("Cast", "Identity", QUANTIZE, DEQUANTIZE)  # leave each element where it is
# Of an operator on integers: inputs of scale and zero point, by that of the weight.
_SCALES: Mapping[str, Mapping[int, tuple[int, int]]] = {
    "DynamicQuantizeMatMul": {1: (2, 3)},
    "MatMulIntegerToFloat": {0: (2, 4), 1: (3, 5)},
    "QAttention": {1: (4, 7)},
    **{name: {0: (1, 2), 3: (4, 5)} for name in ("QGemm", "QLinearConv", "QLinearMatMul")},
    DYNAMIC_LSTM: {weight: (scale, scale + 1) for weight, scale in KERNEL_PARAMETERS.items()},
}
_INTEGER_BIAS = {"QGemm": 6, "QLinearConv": 8}
_FOLD = "fold the constants first, for example with onnxsim"
_BIAS, _WITH_BIAS = 2, ("Conv", "ConvTranspose", "Gemm")  # an input of these


@dataclass(frozen=True, kw_only=True)
class ScaleUse:
    """A scale or a zero point of a weight.

    Attributes:
        axis: of the stored weight, along which there is a value for each index; None for one value.
    """

    use: ConstantReader
    value: ir.Value
    axis: int | None

    def spread(self, array: Elements, rank: int) -> Elements:
        """Return its values so that they broadcast to the stored weight."""
        return array.reshape([-1 if axis == self.axis else 1 for axis in range(rank)])


@dataclass(frozen=True, kw_only=True)
class BiasUse:
    """A constant bias: int32 or, where a runtime quantizes it, float.

    Attributes:
        scale: what a DequantizeLinear reads beside it; None if there is none.
    """

    use: ConstantReader
    value: ir.Value
    scale: tuple[ConstantReader, ir.Value] | None
    is_float: bool = False


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer that reads a weight.

    Attributes:
        moves: the nodes between the stored weight and the layer.
        shape, axis: of what it reads, and which axis of that its output channels are.
        mates: partners of each weight of a channel, in the order in which the layer reads them; -1 for none.
        filter_size: neighbors of a channel whose activations are alike; 1 for none.

    Shapes: mates: (K, any).
    """

    node: ir.Node
    unsafe: UnsafePairs
    moves: tuple[ir.Node, ...]
    shape: Sequence[int]
    axis: int
    mates: PairPositions
    limit: int
    filter_size: int
    bias: BiasUse | None

    def rows_of(self, stored: Elements) -> Elements:
        """Return a stored array as the layer reads it, output channels first.

        Shapes: the result (O, K).
        """
        for node in self.moves:
            stored = _moved(stored, node)
        return np.moveaxis(stored.reshape(self.shape), self.axis, 0).reshape(self.shape[self.axis], -1)

    def stored_axis(self, rank: int) -> int | None:
        """Return the axis of the stored weight that its output channels are; None if it has none."""
        axis = self.axis
        for node in reversed(self.moves):
            if node.op_type == "Transpose":
                axis = node.attributes.get_ints("perm", tuple(reversed(range(rank))))[axis]
            elif node.op_type not in _KEEPING:
                return None
        return axis if len(self.shape) == rank else None


@dataclass(kw_only=True)
class UnsafeWeight:
    """A stored weight with all that reads it.

    Attributes:
        readers: uses of the constant itself whose scales are all known.
        others: what else reads it, and keeps a copy; an empty text if nothing does.
    """

    stored: ir.Value
    layers: list[Layer] = field(default_factory=list)
    scales: list[ScaleUse] = field(default_factory=list)
    zero_points: list[ScaleUse] = field(default_factory=list)
    readers: list[ConstantReader] = field(default_factory=list)
    others: str = ""

    @property
    def is_float(self) -> bool:
        """Whether the file holds floats, which a QuantizeLinear makes integers of."""
        return self.stored.dtype is not None and self.stored.dtype.is_floating_point()

    @property
    def can_saturate(self) -> bool:
        """Whether a layer that reads it can saturate."""
        return any(layer.unsafe.pairs for layer in self.layers)

    def layout(self) -> "Layout":
        """Return the rows in which its layers read it."""
        assert self.stored.const_value is not None  # noqa: S101 - it is a constant
        shape = self.stored.const_value.shape.numpy()
        limit = min(item.limit for item in self.layers)
        axes = {item.stored_axis(len(shape)) for item in self.layers}
        axis = axes.pop() if len(axes) == 1 else None
        if axis is None:
            mates = np.concatenate([_everywhere(item, shape) for item in self.layers], axis=1)
            return Layout(shape=shape, axis=None, mates=mates, limit=limit, filter_size=1)
        mates = np.concatenate([_in_a_row(item, shape, axis) for item in self.layers], axis=1)
        first = self.layers[0]
        # PairPositions of a kernel are neighbors where nothing has moved them.
        is_kept = axis == 0 and all(node.op_type in _KEEPING for node in first.moves)
        filter_size = first.filter_size if is_kept else 1
        return Layout(shape=shape, axis=axis, mates=mates, limit=limit, filter_size=filter_size)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A stored weight as rows.

    Attributes:
        axis: of the stored weight that rows are of; None for one row of all.
        mates: as of ``Layer``, in the order of a row.
    """

    shape: Sequence[int]
    axis: int | None
    mates: PairPositions
    limit: int
    filter_size: int

    def rows(self, stored: Elements) -> WeightRows:
        """Return a stored array as rows."""
        axis = self.axis
        apart = stored[None] if axis is None else np.moveaxis(stored, axis, 0)
        steps = np.ascontiguousarray(apart.reshape(len(apart), -1))
        return WeightRows(steps=steps, mates=self.mates, limit=self.limit, filter_size=self.filter_size)

    def back(self, rows: Elements) -> Elements:
        """Return rows as the file stores them."""
        if self.axis is None:
            return rows.reshape(self.shape)
        beside = [size for axis, size in enumerate(self.shape) if axis != self.axis]
        return np.moveaxis(rows.reshape([len(rows), *beside]), 0, self.axis)


def _in_a_row(layer: Layer, shape: Sequence[int], axis: int) -> PairPositions:
    """Return the mates of a layer in the order in which the weight is stored."""
    single = tuple(1 if index == axis else size for index, size in enumerate(shape))
    order: Elements = np.arange(int(np.prod(single, dtype=np.int64))).reshape(single)
    for node in layer.moves:
        order = _moved(order, node)
    return _renumbered(layer.mates, np.moveaxis(order, layer.axis, 0).reshape(1, -1), order.size)


def _everywhere(layer: Layer, shape: Sequence[int]) -> PairPositions:
    """Return the mates of a layer as elements of the whole weight."""
    size = int(np.prod(shape, dtype=np.int64))
    return _renumbered(layer.mates, layer.rows_of(np.arange(size).reshape(shape)), size)


def _renumbered(mates: PairPositions, places: Elements, size: int) -> PairPositions:
    found = np.full((size, mates.shape[1]), -1, np.int64)
    for column, partners in enumerate(mates.T):
        paired = np.flatnonzero(partners >= 0)
        found[places[:, paired], column] = places[:, partners[paired]]
    return found


def find_sites(model: ir.Model, target: Target) -> tuple[list[UnsafeWeight], int]:
    """Return stored weights that can saturate, in the order of the graph, and how many layers there are.

    Raises:
        UnrepairableError: a weight that can saturate is computed, or its scale is.
    """
    sites: dict[ir.Value, UnsafeWeight] = {}
    layers = 0
    for node in every_node(model.graph):
        counted = False
        for item in summed_weights(model, node, target) if _reads_integers(node, target) else ():
            counted = True
            if not isinstance(item, SummedWeight):
                continue
            unsafe = unsafe_pairs(item.integers, item.rule, item.axis)
            stored = _stored(item.factor.integers)
            if stored is None:
                if unsafe.pairs:
                    raise _computed(node, item)
                continue
            site = sites.setdefault(stored, UnsafeWeight(stored=stored))
            site.layers.append(_layer(node, item, unsafe, stored))
        if not counted and (what := _computed_weight(node, target)):
            raise UnrepairableError(
                f"{node.op_type} '{node.name}' can saturate, and its weight is not constant: '{what}'",
                hint="export the model with constant weights",
            )
        layers += counted
    found = [site for site in sites.values() if site.can_saturate]
    for site in found:
        _follow(site)
    return found, layers


def _reads_integers(node: ir.Node, target: Target) -> bool:
    """Whether both factors of an operator are integers, or it makes integers of one."""
    both = (restored_by(input_at(node, index), target) for index in (0, 1))
    return node.op_type not in IN_PAIRS or None not in both


def _computed(node: ir.Node, item: SummedWeight) -> UnrepairableError:
    value = item.factor.integers
    return UnrepairableError(
        f"the weight of {node.op_type} '{node.name}' can saturate, and is computed from constants: "
        f"'{value.name if value is not None else ''}'",
        hint=_FOLD,
    )


def _computed_weight(node: ir.Node, target: Target) -> str:
    """Return the name of an int8 weight of a Conv that no constant is; an empty text if there is none."""
    if node.op_type == "QLinearConv":
        value, read = input_at(node, 3), input_at(node, 5)
    elif node.op_type == "Conv" and restored_by(input_at(node, 0), target) is not None:
        dequantize = restored_by(input_at(node, 1), target)
        value = dequantize.inputs[0] if dequantize is not None else None
        read = input_at(dequantize, 2) if dequantize is not None else None
    else:
        return ""
    dtype = next((item.dtype for item in (read, value) if item is not None and item.dtype is not None), None)
    return (value.name or "") if value is not None and dtype == ir.DataType.INT8 else ""


def _stored(integers: ir.Value | None) -> ir.Value | None:
    """Return the constant that integers are, past what moves or quantizes it; None if they are computed."""
    value = integers
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in (*_MOVES, QUANTIZE):
            return None
        value = producer.inputs[0]
    return value


def _chain(read: ir.Value | None, stored: ir.Value) -> tuple[ir.Node, ...]:
    """Return the nodes from a stored constant to what an operator reads, in order."""
    found = list[ir.Node]()
    while read is not None and read is not stored:
        producer = read.producer()
        assert producer is not None  # noqa: S101 - it was followed already
        found.insert(0, producer)
        read = producer.inputs[0]
    return tuple(found)


def _moved(array: Elements, node: ir.Node) -> Elements:
    """Return an array as a node moves the elements of one."""
    if node.op_type == "Transpose":
        permutation = node.attributes.get_ints("perm", ())
        return array.transpose(permutation or None)
    if node.op_type in _KEEPING:
        return array
    shape = node.outputs[0].shape
    if shape is None or not shape.is_static():
        raise UnrepairableError(
            f"the shape of '{node.outputs[0].name}' is not known, which a weight is read from",
            hint=_FOLD,
        )
    return array.reshape(shape.numpy())


def _layer(node: ir.Node, item: SummedWeight, unsafe: UnsafePairs, stored: ir.Value) -> Layer:
    shape, axis = item.integers.shape, item.axis
    single = [1 if index == axis else size for index, size in enumerate(shape)]
    return Layer(
        node=node,
        unsafe=unsafe,
        moves=_chain(item.factor.read, stored),
        shape=shape,
        axis=axis,
        mates=mates_along(item.rule, single),
        limit=item.rule.largest,
        filter_size=int(np.prod(shape[2:])) if node.op_type in CONVOLUTIONS else 1,
        bias=_bias(node),
    )


def _bias(node: ir.Node) -> BiasUse | None:
    """Return the bias of a layer, if it has a constant one."""
    if (index := _INTEGER_BIAS.get(node.op_type)) is not None:
        value = input_at(node, index)
        if value is None or value.const_value is None:
            return None
        return BiasUse(use=(node, index), value=value, scale=None)
    read = input_at(node, _BIAS) if node.op_type in _WITH_BIAS else None
    dequantize = dequantized_by(read)
    if dequantize is None:
        is_float = read is not None and read.const_value is not None
        return (
            BiasUse(use=(node, _BIAS), value=read, scale=None, is_float=True) if is_float and read else None
        )
    value, scale = dequantize.inputs[0], dequantize.inputs[1]
    is_known = value is not None and value.const_value is not None and value.dtype == ir.DataType.INT32
    if not is_known or value is None or scale is None or scale.const_value is None:
        return None
    return BiasUse(use=(dequantize, 0), value=value, scale=((dequantize, 1), scale))


def _follow(site: UnsafeWeight) -> None:
    """Find all scales of a stored weight, and what else reads it."""
    if site.stored.dtype == ir.DataType.UINT8:
        raise UnrepairableError(
            f"'{site.stored.name}' is an unsigned weight beside signed activations, which ptq cannot change",
            hint="quantize weights to int8 and activations to uint8",
        )
    for use in site.stored.uses():
        found = _Found()
        if reason := found.walk(site.stored, use.node, use.idx, ()):
            site.others = reason
            continue
        site.readers.append((use.node, use.idx))
        site.scales += found.scales
        site.zero_points += found.zeros
    if site.stored.is_graph_output():
        site.others = f"'{site.stored.name}' is an output of the graph"
    if not site.scales or {layer.node for layer in site.layers} - _read_by(site):
        raise UnrepairableError(f"a weight can saturate, but {site.others}", hint=_FOLD)


def _read_by(site: UnsafeWeight) -> set[ir.Node]:
    """Return the layers that read a weight by uses whose scales are known."""
    first = {id(node) for node, _ in site.readers}
    return {
        layer.node
        for layer in site.layers
        if (id(layer.moves[0]) if layer.moves else id(layer.node)) in first
    }


class _Found:
    """Scales and zero points that one use of a stored weight leads to."""

    def __init__(self) -> None:
        self.scales: list[ScaleUse] = []
        self.zeros: list[ScaleUse] = []

    def walk(self, stored: ir.Value, node: ir.Node, index: int, moves: tuple[ir.Node, ...]) -> str:
        """Add what a use leads to; return why that is not known, or an empty text."""
        who = f"{node.op_type} '{node.name}' reads '{stored.name}', and its scale is not a constant for it"
        if node.op_type == DEQUANTIZE and index == 0:
            return "" if self._add(stored, node, index, (1, 2), moves) else who
        if node.op_type in (*_MOVES, QUANTIZE) and index == 0:
            is_known = node.op_type != QUANTIZE or self._add(stored, node, index, (1, 2), moves)
            output = node.outputs[0]
            if not is_known or output.is_graph_output():
                return who
            reasons = (self.walk(stored, use.node, use.idx, (*moves, node)) for use in output.uses())
            return next(filter(None, reasons), "")
        if node.op_type == MATMUL_INTEGER and (behind := _factor_behind(node)) is not None:
            zero = (node, index + 2, input_at(node, index + 2))
            return "" if self._add_each(stored, (behind, zero), node, index, moves) else who
        where = _SCALES.get(node.op_type, {}).get(index)
        return "" if where is not None and self._add(stored, node, index, where, moves) else who

    def _add(
        self, stored: ir.Value, node: ir.Node, index: int, where: tuple[int, int], moves: tuple[ir.Node, ...]
    ) -> bool:
        scale, zero = ((node, at, input_at(node, at)) for at in where)
        if scale[2] is None or node.attributes.get_int("block_size", 0) > 0:
            return False
        return self._add_each(stored, (scale, zero), node, index, moves)

    def _add_each(
        self,
        stored: ir.Value,
        pair: Iterable[tuple[ir.Node, int, ir.Value | None]],
        node: ir.Node,
        index: int,
        moves: tuple[ir.Node, ...],
    ) -> bool:
        """Add a scale and a zero point; return whether both are constants for indices of the weight."""
        for (reader, at, value), found in zip(pair, (self.scales, self.zeros), strict=True):
            if value is None:
                continue
            if value.const_value is None or stored.const_value is None:
                return False
            sizes, shape = value.const_value.shape.numpy(), stored.const_value.shape.numpy()
            axis = None
            if int(np.prod(sizes, dtype=np.int64)) != 1:
                axis = _axis_of(sizes, node, index, moves, len(shape))
                if axis is None or shape[axis] != max(sizes):
                    return False
            found.append(ScaleUse(use=(reader, at), value=value, axis=axis))
        return True


def _axis_of(
    sizes: Sequence[int], node: ir.Node, index: int, moves: tuple[ir.Node, ...], rank: int
) -> int | None:
    """Return along which axis of the stored weight a node has several scales; None if that is not known."""
    if len([size for size in sizes if size > 1]) != 1:
        return None
    if node.op_type in (QUANTIZE, DEQUANTIZE):
        axis = node.attributes.get_int("axis", 1) % rank
    elif node.op_type in CONVOLUTIONS:
        axis = 0
    elif node.op_type == DYNAMIC_LSTM and sizes[0] > 1:
        axis = 0  # of the directions
    else:
        is_turned = node.op_type in TRANSPOSED and node.attributes.get_int("transB", 0) == 1
        axis = rank - (2 if is_turned or index == 0 else 1)
    for move in reversed(moves):
        if move.op_type == "Transpose":
            axis = move.attributes.get_ints("perm", tuple(reversed(range(rank))))[axis]
        elif move.op_type not in _KEEPING:
            return None
    return axis


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
        for reader, at in places:
            value = reader.inputs[at]
            if value is not None and value.const_value is not None:
                return reader, at, value
