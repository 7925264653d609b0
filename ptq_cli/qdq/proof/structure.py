"""Proof: a quantized graph is well formed, whatever tool wrote it."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from ptq_cli.core.formats import FLOATS
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at
from ptq_cli.models.integer_operators import CONV_INTEGER, MATMUL_INTEGER
from ptq_cli.models.pair_operators import (
    BLOCK,
    DEQUANTIZE,
    QUANTIZE,
    clips_integers,
    dequantized_by,
    four_bit_source,
    integers_of,
    is_dynamic_quantize,
    is_four_bit,
    quantized_by,
    quantizer_of,
)
from ptq_cli.plan.already_quantized import has_parameters_of
from ptq_cli.plan.formats import kernel_refusal
from ptq_cli.plan.graph_questions import Rules, moved_inputs, moved_outputs
from ptq_cli.plan.target.rules import OpRule, Target
from ptq_cli.qdq.read.pair_grids import grid_of, is_clamped_sum, is_unpacked, stored_integers

MULTIPLIES = (CONV_INTEGER, MATMUL_INTEGER)

TakesIntegers = Callable[[ir.Node], bool]


def structure_faults(model: ir.Model, takes_integers: TakesIntegers = lambda _: False) -> Iterator[str]:
    """Yield what is wrong with the Q/DQ structure of a model; nothing if it is correct.

    The rules: each QuantizeLinear is read, and only by DequantizeLinears with the same parameters, which may
    be behind a Clip of its integers, or by MatMulInteger (``is_clamped_sum`` tells the one exception); each
    DequantizeLinear reads a QuantizeLinear or a constant, which may be unpacked first, and is read; scales
    are positive and finite. A model may also have integer inputs and outputs. An operator that
    ``takes_integers`` may be between the two, as a QLinearConv may if the runtime has one.
    """
    for node in every_node(model.graph):
        if node.op_type == QUANTIZE:
            yield from _quantize_faults(node, takes_integers)
        elif node.op_type == DEQUANTIZE:
            yield from _dequantize_faults(node, takes_integers)


def _quantize_faults(node: ir.Node, takes_integers: TakesIntegers) -> Iterator[str]:
    readers = [reader for reader, _ in integers_of(node).uses()]
    if not readers and not node.outputs[0].is_graph_output():
        yield f"'{node.name}' is not read by any node"
    for reader in readers:
        if reader.op_type in MULTIPLIES or clips_integers(reader) or takes_integers(reader):
            continue
        if reader.op_type != DEQUANTIZE:
            found = f"{reader.op_type} '{reader.name}'"
            yield f"'{node.name}' is read by {found}, which is not a DequantizeLinear"
        elif not has_parameters_of(node, reader) and not is_clamped_sum(node, reader):
            yield f"'{reader.name}' does not have the parameters of '{node.name}'"


def _gives_integers(producer: ir.Node, takes_integers: TakesIntegers) -> bool:
    """Tell whether an operator returns integers, which may be clipped to fewer bits."""
    if not clips_integers(producer):
        return takes_integers(producer)
    source = producer.inputs[0]
    before = source.producer() if source is not None else None
    return before is not None and takes_integers(before)


def _is_integer(source: ir.Value, takes_integers: TakesIntegers) -> bool:
    producer = source.producer()
    if quantizer_of(source) is not None or (
        producer is not None and _gives_integers(producer, takes_integers)
    ):
        return True
    if is_dynamic_quantize(producer):
        return True
    return is_unpacked(source) or source.is_graph_input()


def _dequantize_faults(node: ir.Node, takes_integers: TakesIntegers) -> Iterator[str]:
    source, scale = node.inputs[0], node.inputs[1]
    if source is not None and not _is_integer(source, takes_integers):
        yield f"'{node.name}' reads neither a QuantizeLinear nor a constant"
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        yield f"'{node.name}' is not read by any node"
    values = scale.const_value.numpy() if scale is not None and scale.const_value is not None else None
    if values is not None and not ((values > 0) & (values < float("inf"))).all():
        yield f"'{node.name}' has a scale that is not positive and finite"


# Rules about 4-bit floats with scales on two levels, as TensorRT reads them.


def two_level_faults(model: ir.Model) -> Iterator[str]:
    """Yield what is not as TensorRT reads 4-bit floats: blocks, scales, and both factors of a product."""
    for node in every_node(model.graph):
        if is_four_bit(node):
            yield from _block_faults(node)
        elif is_dynamic_quantize(node):
            yield from _dynamic_faults(node)
        elif node.op_type in ("MatMul", "Gemm"):
            found = [four_bit_source(value) is not None for value in node.inputs[:2]]
            if any(found) and not all(found):
                yield f"one factor of {node.op_type} '{node.name}' is float4e2m1, and the other is not"


def _block_faults(node: ir.Node) -> Iterator[str]:
    source, scale = node.inputs[0], node.inputs[1]
    rank = len(source.shape) if source is not None and source.shape is not None else 0
    axis = node.attributes.get_int("axis", 1)
    if axis not in (-1, rank - 1):
        yield f"'{node.name}' has blocks along axis {axis}, but the target expects the last one"
    size = node.attributes.get_int("block_size", 0)
    if size != BLOCK:
        yield f"'{node.name}' has blocks of {size}, but the target expects {BLOCK}"
    producer = scale.producer() if scale is not None else None
    scales = producer.inputs[0] if producer is not None and producer.op_type == DEQUANTIZE else None
    if producer is None or scales is None or scales.dtype != ir.DataType.FLOAT8E4M3FN:
        yield f"the scales of '{node.name}' are not float8e4m3fn behind a DequantizeLinear"
    elif not _is_one_number(producer.inputs[1]):
        yield f"the scales of '{node.name}' are not multiplied by one positive float32"


def _dynamic_faults(node: ir.Node) -> Iterator[str]:
    wanted = {"axis": -1, "block_size": BLOCK, "scale_type": int(ir.DataType.FLOAT8E4M3FN)}
    for name, number in wanted.items():
        found = node.attributes.get_int(name, 0)
        if found != number:
            yield f"'{node.name}' has {name} {found}, but the target expects {number}"
    if not _is_one_number(node.inputs[1]):
        yield f"the scale of '{node.name}' is not one positive float32"
    readers = {use.node.op_type for value in node.outputs for use in value.uses()}
    if readers != {DEQUANTIZE}:
        yield f"'{node.name}' is read by {', '.join(sorted(readers)) or 'nothing'}, not by DequantizeLinears"


def _is_one_number(value: ir.Value | None) -> bool:
    constant = value.const_value if value is not None else None
    if constant is None or constant.dtype != ir.DataType.FLOAT or constant.size != 1:
        return False
    return bool(0 < np.asarray(constant.numpy()).reshape(()) < np.inf)


# Rules of a target about number types: which an operator multiplies, and which it has a kernel for.


def type_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators that multiply floats of few bits by another type, or have no kernel for their type."""
    yield from two_level_faults(model)
    rules = Rules(target)
    for node in every_node(model.graph):
        rule = rules.of(node)
        if rule is None or rule.kind not in ("compute", "join", "same"):
            continue
        names = _types(node, rule)
        floats = [name for name in names if name in FLOATS]
        if not floats:
            continue
        if len(names) > 1:
            yield f"{node.op_type} '{node.name}' reads {' and '.join(names)}, and no kernel has two types"
        elif refusal := kernel_refusal(node.op_type, rule, target, floats[0], _weight_shape(node, rule)):
            yield f"{node.op_type} '{node.name}' reads {floats[0]}, but {refusal}"


def _weight_shape(node: ir.Node, rule: OpRule) -> tuple[int, ...]:
    pair = dequantized_by(input_at(node, rule.weight))
    return constant_shape(stored_integers(pair)) if pair is not None else ()


def _types(node: ir.Node, rule: OpRule) -> list[str]:
    """Return the types behind the pairs of a node, which is quantized if all its inputs are."""
    if rule.kind == "compute":
        values = [value for index in rule.factors if (value := input_at(node, index)) is not None]
    else:
        values = moved_inputs(node, rule)
        if not any(quantized_by(value) for value in moved_outputs(node, rule)):
            return []
    pairs = [dequantized_by(value) for value in values]
    if rule.kind == "compute" and not all(pairs):
        return []
    return list(dict.fromkeys(grid_of(pair).dtype.name.lower() for pair in pairs if pair is not None))
