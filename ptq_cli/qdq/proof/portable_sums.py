"""Proof: layers of a quantized file that can saturate on x86 processors without VNNI, whoever wrote it.

Kernels there add the products of two bytes in 16 bits (``core/pair_sums.py``). The rules are what was
seen of ONNX Runtime 1.31 and OpenVINO 2026.4 on such processors: of all kernels, those for unsigned by signed
bytes saturate. They read a weight's integers as they are stored, whatever its zero point is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.pair_sums import (
    Order,
    PairRule,
    UnsafePairs,
    conv_orders,
    conv_transpose_orders,
    unsafe_pairs,
)
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.pair_operators import (
    CONV_INTEGER,
    DYNAMIC_LSTM,
    KERNEL_PARAMETERS,
    QUANTIZE,
    clips_integers,
)
from ptq_cli.plan.target.rules import QNN, Target
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.proof.operators import OperatorProof
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import UNPACKING, dynamic_parts, unpacking_of
from ptq_cli.qdq.read.twin_graphs import computed_integers

LARGEST_BYTE, _LARGEST_SUM = 255, 2**15 - 1  # of unsigned integers; of two products in 16 bits
SIGNED_STEPS = 128  # of a signed byte below 0
IN_PAIRS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # have such kernels where they read DequantizeLinears
# Operators on integers that have them: the inputs of both factors and of their zero points.
ON_INTEGERS: Mapping[str, tuple[tuple[int, int | None], tuple[int, int | None]]] = {
    "DynamicQuantizeMatMul": ((0, None), (1, 3)),
    "MatMulInteger": ((0, 2), (1, 3)),
    "MatMulIntegerToFloat": ((0, 4), (1, 5)),
    "QAttention": ((0, 6), (1, 7)),
    **dict.fromkeys(("QGemm", "QLinearConv", "QLinearMatMul"), ((0, 2), (3, 5))),
}
CONVOLUTIONS, TRANSPOSED = ("Conv", "QLinearConv"), ("Gemm", "QGemm")


@dataclass(frozen=True)
class LayerSums:
    """A layer with an integer kernel and constant weights.

    Attributes:
        unsafe: which pairs of its weights can saturate; of several weights, of all together.
        exact: why its kernel is exact whatever the weights are; empty if it is not.
    """

    name: str
    op: str
    unsafe: UnsafePairs
    exact: str = ""


def portable_sums(model: ir.Model, target: Target, proofs: Iterable[OperatorProof]) -> Iterator[LayerSums]:
    """Yield which sums of each layer of a quantized graph can saturate on x86 processors without VNNI."""
    if target.runtime == QNN:
        return  # The HTP adds in 32 bits.
    integer = {proof.name for proof in proofs if proof.placement == "integer"}
    parts = {part.product: part for part in dynamic_parts(model).values()}
    for node in every_node(model.graph):
        part = parts.get(node)
        layer, op = (part.node, part.op) if part is not None else (node, node.op_type)
        name = layer.name or ""
        if name not in integer:
            continue
        found = list(summed_weights(model, node, target))
        counts = [
            unsafe_pairs(item.integers, item.rule, item.axis)
            for item in found
            if isinstance(item, SummedWeight)
        ]
        if counts:
            each = zip(*map(astuple, counts), strict=True)
            yield LayerSums(name, op, UnsafePairs(*map(sum, each)))
        elif found:
            yield LayerSums(name, op, UnsafePairs(0, 0, 0, 0), str(found[0]))


@dataclass(frozen=True)
class KernelFactor:
    """A factor that an operator reads, and its integers before a DequantizeLinear if there is one."""

    read: ir.Value | None
    integers: ir.Value | None
    dtype: ir.DataType
    restored: ir.Node | None = None

    @property
    def is_constant(self) -> bool:
        """Whether its integers are computed from constants alone."""
        return self.integers is not None and _sources(self.integers) is not None

    @property
    def largest(self) -> int:
        """The largest unsigned integer that a kernel reads of activations; 0 of others.

        ONNX Runtime makes unsigned bytes of int8 that a QuantizeLinear gives right to a DequantizeLinear.
        """
        producer = self.integers.producer() if self.integers is not None else None
        if self.dtype == ir.DataType.INT8:
            is_quantized = producer is not None and producer.op_type == QUANTIZE
            return LARGEST_BYTE if is_quantized and self.restored is not None else 0
        if self.dtype != ir.DataType.UINT8:
            return 0
        high = input_at(producer, 2) if producer is not None and clips_integers(producer) else None
        most = high.const_value if high is not None else None
        return int(most.numpy().item()) if most is not None else LARGEST_BYTE


@dataclass(frozen=True, kw_only=True)
class SummedWeight:
    """A constant that an integer kernel multiplies by, and which of its elements it adds in 16 bits.

    Attributes:
        factor: where it is in the graph.
        integers: as the operator reads them, with two axes at least.
        axis: of the output channels.
    """

    factor: KernelFactor
    integers: Array
    rule: PairRule
    axis: int


def summed_weights(model: ir.Model, node: ir.Node, target: Target) -> Iterator[SummedWeight | str]:
    """Yield each constant that a node multiplies integers by, or why its kernel is exact."""
    if node.op_type == DYNAMIC_LSTM:
        floats = KernelFactor(None, None, ir.DataType.UINT8)  # What it makes of its activations.
        for index in KERNEL_PARAMETERS:
            yield from _summed(model, node, floats, _stored(node, index, None))
    if node.op_type == CONV_INTEGER and _stored(node, 1, None).is_constant:
        yield "ConvInteger adds in 32 bits"
    elif node.op_type in IN_PAIRS:
        first, second = (_restored(input_at(node, index), target) for index in (0, 1))
        yield from _summed(model, node, first, second)
    elif node.op_type in ON_INTEGERS:
        places = ON_INTEGERS[node.op_type]
        yield from _summed(model, node, _stored(node, *places[0]), _stored(node, *places[1]))


def _restored(value: ir.Value | None, target: Target) -> KernelFactor:
    dequantize = restored_by(value, target)
    if dequantize is None:
        return KernelFactor(value, None, ir.DataType.UINT8)
    return KernelFactor(value, dequantize.inputs[0], grid_of(dequantize).dtype, dequantize)


def _stored(node: ir.Node, index: int, zero: int | None) -> KernelFactor:
    value, zero_point = input_at(node, index), input_at(node, zero)
    known = [item.dtype for item in (zero_point, value) if item is not None]
    # Floats are what DynamicQuantizeMatMul makes unsigned bytes of, and types of integers may be unknown.
    integers = [dtype for dtype in known if dtype is not None and dtype.is_integer()]
    return KernelFactor(value, value, integers[0] if integers else ir.DataType.UINT8)


def _summed(
    model: ir.Model, node: ir.Node, first: KernelFactor, second: KernelFactor
) -> Iterator[SummedWeight | str]:
    weight = second if second.is_constant else first
    if not weight.is_constant:
        return
    if exact := _why_exact(first, second):
        yield exact
        return
    array = _integers(model, weight)
    if array.ndim == 1:
        array = array.reshape(-1, 1) if weight is second else array.reshape(1, -1)
    orders, axis = _geometry(node, array.shape, is_second=weight is second)
    if not orders:
        yield "each group has one channel in and one out"
        return
    # Two unsigned weights reach -2^15 first: their activations are signed.
    largest = _LARGEST_SUM // first.largest if weight is second else 2**15 // SIGNED_STEPS
    yield SummedWeight(factor=weight, integers=array, rule=PairRule(largest, orders), axis=axis)


def _why_exact(first: KernelFactor, second: KernelFactor) -> str:
    """Return why no two products exceed 16 bits, whatever the constant is; an empty text if they may."""
    if not second.is_constant:
        is_mixed = (
            first.dtype == ir.DataType.UINT8 and second.dtype == ir.DataType.INT8 and not second.largest
        )
        return "" if is_mixed else "its weight is its first factor"
    if second.dtype != ir.DataType.INT8:
        return f"its weight is {second.dtype.name.lower()}"
    if not first.largest:
        return f"its activations are {first.dtype.name.lower()}"
    is_small = 2 * SIGNED_STEPS * first.largest <= _LARGEST_SUM + 1
    return f"its activations are at most {first.largest}" if is_small else ""


def _geometry(node: ir.Node, shape: Sequence[int], *, is_second: bool) -> tuple[tuple[Order, ...], int]:
    """Return in which orders a kernel reads a constant, and the axis of its output channels."""
    groups = node.attributes.get_int("group", 1)
    if node.op_type in CONVOLUTIONS:
        return conv_orders(shape, groups), 0
    if node.op_type == "ConvTranspose":
        return conv_transpose_orders(groups), 1
    inner, outer = len(shape) - 2, len(shape) - 1
    is_turned = node.op_type in TRANSPOSED and node.attributes.get_int("transB", 0) == 1
    return (((outer,),), inner) if is_turned or not is_second else (((inner,),), outer)


def _integers(model: ir.Model, weight: KernelFactor) -> Array:
    """Return the integers of a constant as the operator reads them: unpacked, and moved behind the pair."""
    stored, read, moves = weight.integers, weight.read, list[ir.Node]()
    assert stored is not None and read is not None  # noqa: S101 - it is a constant
    if sources := _sources(stored):
        integers = computed_integers(model, sources, stored, {})
    else:
        with mapped(stored) as array:
            integers = np.array(array)
    value = read
    while weight.restored is not None and (producer := value.producer()) is not weight.restored:
        assert producer is not None and producer.inputs[0] is not None  # noqa: S101 - it was followed already
        moves.insert(0, producer)
        value = producer.inputs[0]
    return computed_integers(model, moves, read, {value: integers}) if moves else integers


def _sources(integers: ir.Value) -> list[ir.Node] | None:
    return unpacking_of(integers, (*UNPACKING, QUANTIZE))
