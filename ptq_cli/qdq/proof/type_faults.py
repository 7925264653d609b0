"""Rules about number types: factors, kernels, and 4-bit floats with two levels of scales, as in TensorRT."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ptq_cli.core.formats import FLOATS
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, rank_of
from ptq_cli.models.pair_operators import (
    BLOCK,
    DEQUANTIZE,
    dequantized_by,
    four_bit_source,
    is_dynamic_quantize,
    is_four_bit,
    quantized_by,
)
from ptq_cli.plan.formats import kernel_refusal
from ptq_cli.plan.neighbors import Rules, moved_inputs, moved_outputs
from ptq_cli.plan.target.rules import OpRule, Target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import stored_integers


def type_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators that multiply floats of few bits by another type, or have no kernel for their type."""
    yield from _two_level_faults(model)
    for node, rule in Rules(target).ruled(model.graph, "compute", "join", "same"):
        names = _types(node, rule)
        floats = [name for name in names if name in FLOATS]
        if not floats:
            continue
        pair = dequantized_by(input_at(node, rule.weight))
        shape = constant_shape(stored_integers(pair)) if pair is not None else ()
        if len(names) > 1:
            yield f"{node.op_type} '{node.name}' reads {' and '.join(names)}, and no kernel has two types"
        elif refusal := kernel_refusal(node.op_type, rule, target, floats[0], shape):
            yield f"{node.op_type} '{node.name}' reads {floats[0]}, but {refusal}"


def _types(node: ir.Node, rule: OpRule) -> list[str]:
    """Return the types behind the pairs of a node, which is quantized if all its inputs are."""
    if rule.kind == "compute":
        values = [value for index in rule.factors if (value := input_at(node, index)) is not None]
        is_quantized = all(map(dequantized_by, values))
    else:
        values = moved_inputs(node, rule)
        is_quantized = any(quantized_by(value) for value in moved_outputs(node, rule))
    pairs = [dequantized_by(value) for value in values] if is_quantized else []
    return list(dict.fromkeys(grid_of(pair).type_name for pair in pairs if pair is not None))


def _two_level_faults(model: ir.Model) -> Iterator[str]:
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
    scale, axis = node.inputs[1], node.attributes.get_int("axis", 1)
    if axis not in (-1, (rank_of(node.inputs[0]) or 0) - 1):
        yield f"'{node.name}' has blocks along axis {axis}, but the target expects the last one"
    size = node.attributes.get_int("block_size", 0)
    if size != BLOCK:
        yield f"'{node.name}' has blocks of {size}, but the target expects {BLOCK}"
    producer = dequantized_by(scale)
    scales = producer.inputs[0] if producer is not None else None
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
