"""Proof: the Q/DQ of a graph follow the target's rules, whoever placed them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import onnx_ir as ir

from ptq_cli.core.formats import FLOATS, IntegerFormat
from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.integer_operators import DYNAMIC_LSTM, KERNEL_PARAMETERS, is_integer_operator
from ptq_cli.models.opset import QUARTER_BYTE_OPSET
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    QUANTIZE,
    dequantized_by,
    quantizer_of,
)
from ptq_cli.plan.graph_questions import is_constant, weight_axis
from ptq_cli.plan.neighbors import (
    Rules,
    rule_of,
)
from ptq_cli.plan.target.rules import ONNXRUNTIME, BlockRule, OpRule, Target
from ptq_cli.qdq.proof.placement_faults import residual_faults, result_faults, shared_faults
from ptq_cli.qdq.proof.structure import structure_faults
from ptq_cli.qdq.proof.type_faults import type_faults
from ptq_cli.qdq.read.pair_grids import FORMATS, Grid, grid_of, has_scale_of_products
from ptq_cli.qdq.read.stored_constants import is_constant_pair, stored_integers

WIDE_OPSET, HALF_SCALE_OPSET = 21, 19
FLOAT_OPSETS = {"float8e4m3fn": 19, "float4e2m1": 23}
"""The first opset whose QuantizeLinear and DequantizeLinear have a float format."""
QUARTER = ("int2", "uint2")
WIDE = (ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4)


def opset_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield a fault if the opset is older than the target or the graph's integer types require."""
    opset = model.opset_imports.get("", 0)
    if opset < target.opset:
        yield f"the opset is {opset}, but the target needs {target.opset}"
    for node in every_node(model.graph):
        if node.op_type != DEQUANTIZE:
            continue
        scale, dtype = node.inputs[1], grid_of(node).dtype
        if opset < HALF_SCALE_OPSET and scale is not None and scale.dtype == ir.DataType.FLOAT16:
            yield f"'{node.name}' has a scale of float16, which needs opset {HALF_SCALE_OPSET}"
        name = dtype.name.lower()
        needed = WIDE_OPSET if dtype in WIDE else FLOAT_OPSETS.get(name, 0)
        needed = QUARTER_BYTE_OPSET if name in QUARTER else needed
        if opset < needed:
            yield f"'{node.name}' reads {name}, which needs opset {needed}"


def storage_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield weights that are not stored as the target expects, and integer biases if it expects floats."""
    for node in every_node(model.graph):
        source = node.inputs[0] if node.op_type == DEQUANTIZE else None
        if target.bias.format == "float" and source is not None and source.dtype == ir.DataType.INT32:
            yield f"'{node.name}' dequantizes int32, but the target expects float biases"
        rule = Rules(target).of(node)
        if rule is None or rule.kind != "compute":
            continue
        bias = dequantized_by(input_at(node, rule.bias))
        if target.bias.format == "float" and bias is not None and grid_of(bias).dtype != ir.DataType.INT32:
            yield f"'{bias.name}' quantizes the bias of '{node.name}', but the target expects float biases"
        value = input_at(node, rule.weight)
        dequantize = dequantized_by(value)
        if dequantize is None or grid_of(dequantize).block_size or _is_computed(dequantize):
            continue
        if grid_of(dequantize).dtype.name.lower() in FLOATS:
            if is_constant_pair(dequantize):
                yield f"the weight of '{node.name}' is not stored as {grid_of(dequantize).dtype.name.lower()}"
            continue
        wanted = target.weight_rule(node.op_type).stored
        if is_constant_pair(dequantize) != (wanted == "pairs"):
            words = "floats before a Q/DQ pair" if wanted == "pairs" else "integers"
            yield f"the weight of '{node.name}' is not stored as {words}"


def _is_computed(dequantize: ir.Node) -> bool:
    """Return whether a pair quantizes a value computed at run time, as both sides of a MatMul may be."""
    return quantizer_of(dequantize.inputs[0]) is not None and not is_constant_pair(dequantize)


@dataclass(frozen=True)
class Fault:
    """A place where a graph breaks a rule."""

    rule: Annotated[str, "The rule's name."]
    text: Annotated[str, "What breaks it, with the names of nodes."]


@dataclass(frozen=True)
class Rule:
    """A rule that is checked: its name on the terminal and in JSON, what it asks for, who finds faults."""

    name: str
    asks: str
    faults: Callable[[ir.Model, Target], Iterator[str]]


def target_faults(model: ir.Model, target: Target) -> Iterator[Fault]:
    """Yield what the target does not allow in a quantized graph; nothing if the graph is correct."""
    for rule in RULES:
        for text in rule.faults(model, target):
            yield Fault(rule.name, text)


def _pairs(model: ir.Model, target: Target) -> Iterator[str]:
    def takes_integers(node: ir.Node) -> bool:
        # A file may have integer operators, which ONNX Runtime's own tool also writes.
        rule = rule_of(node, target)
        moves = rule is not None and rule.kind == "same"
        pads = (
            node.op_type == "Pad"
        )  # Of channels: of zeros, that is, which a QuantizeLinear has as its zero point.
        return target.runtime == ONNXRUNTIME and (moves or pads or is_integer_operator(node.op_type))

    yield from structure_faults(model, takes_integers)


def _allowed(target: Target) -> list[str]:
    # A tie carries the format of an operator's result to other tensors.
    rules = [target.activation, *(rule.result for rule in target.op.values() if rule.result)]
    return [name for rule in rules for name in (rule.format, *rule.formats, *rule.simulated)]


def _formats(model: ir.Model, target: Target) -> Iterator[str]:
    wanted = list(dict.fromkeys(_allowed(target)))
    for node in _activation_quantizers(model):
        found = grid_of(node).dtype.name.lower()
        if found not in wanted:
            yield f"'{node.name}' is {found}, but the target expects {' or '.join(wanted)}"
        if grid_of(node).per_axis or grid_of(node).block_size:
            yield f"'{node.name}' has several scales, but the target expects one scale for an activation"
    if target.runtime == ONNXRUNTIME:
        return  # It has kernels for unsigned weights, too.
    for node, op, dequantize in _weighted(model, target):
        if op.blocks is not None and _is_read_in_blocks(grid_of(dequantize), op.blocks):
            continue
        rule, found = target.weight_rule(node.op_type), grid_of(dequantize).dtype.name.lower()
        wanted = list(dict.fromkeys((rule.format, *rule.formats)))
        if found not in wanted and not (rule.packed and found in ("int4", "uint4")):
            yield f"'{dequantize.name}' is {found}, but the target expects {' or '.join(wanted)} for a weight"


def _is_read_in_blocks(grid: Grid, blocks: BlockRule) -> bool:
    formats = [IntegerFormat(bits, signed=True).name for bits in blocks.bits]
    return grid.block_size in blocks.sizes and grid.dtype.name.lower() in formats


def _zero_points(model: ir.Model, target: Target) -> Iterator[str]:
    weights = {id(dequantize): dequantize for _, _, dequantize in _weighted(model, target)}
    for node in weights.values():
        grid = grid_of(node)
        if not grid.block_size and not _is_zero_point(grid, _center(grid.dtype)):
            yield f"'{node.name}': the weight's zero point is not {_center(grid.dtype)}"
    if not target.activation.symmetric:
        return
    for node in _activation_quantizers(model):
        grid = grid_of(node)
        # For a type that the target does not have, the zero point of the target's own type.
        is_allowed = grid.dtype.name.lower() in _allowed(target)
        wanted = _center(grid.dtype if is_allowed else ir.DataType[target.activation.format.upper()])
        if not _is_zero_point(grid, wanted):
            zero = "computed" if grid.zero_point is None else int(grid.zero_point.reshape(-1)[0])
            yield f"'{node.name}': the zero point is {zero}, but the target expects {wanted}"


def _is_zero_point(grid: Grid, wanted: int) -> bool:
    return grid.zero_point is not None and bool(np.all(grid.zero_point == wanted))


def _center(dtype: ir.DataType) -> int:
    format = FORMATS.get(dtype)
    return 0 if format is None or format.signed else (format.qmax + 1) // 2


def _weights(model: ir.Model, target: Target) -> Iterator[str]:
    yield from _kernel_weights(model, target)
    for node, rule, dequantize in _weighted(model, target):
        grid = grid_of(dequantize)
        value = dequantize.outputs[0]
        integers = stored_integers(dequantize)
        if value.shape is None or grid.block_size:
            continue
        axis, bits = weight_axis(node, rule, value), target.weight_rule(node.op_type).bits
        if grid.per_axis and axis is not None and grid.axis % max(len(value.shape), 1) != axis:
            found = f"'{dequantize.name}': scales are along axis {grid.axis}"
            yield f"{found}, but {node.op_type} expects axis {axis}"
        if _is_beyond(integers, bits):
            yield f"'{dequantize.name}': {_too_large(bits)}"


def _kernel_weights(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield LSTMs on integers whose weights have more bits than the kernels of a target can add."""
    for node in every_node(model.graph):
        for index in KERNEL_PARAMETERS if node.op_type == DYNAMIC_LSTM else ():
            integers = input_at(node, index)
            # Products of unsigned weights are added in 32 bits everywhere.
            is_signed = integers is not None and integers.dtype == ir.DataType.INT8
            if is_signed and _is_beyond(integers, target.weight.bits):
                yield f"'{node.name}': {_too_large(target.weight.bits)}"


def _too_large(bits: int) -> str:
    return f"integers beyond ±{2 ** (bits - 1)}, for which 16-bit sums can overflow"


def _is_beyond(integers: ir.Value | None, bits: int) -> bool:
    stored = integers.const_value if integers is not None else None
    array = stored.numpy() if stored is not None else np.zeros(1)
    limit = 2 ** (bits - 1)
    return bits < 8 and array.size > 0 and bool(np.abs(array.astype(np.int64)).max() > limit)


def _biases(model: ir.Model, target: Target) -> Iterator[str]:
    if target.bias.format == "float":
        return  # The rule "storage" covers it.
    for node, rule, dequantize in _weighted(model, target):
        bias = dequantized_by(input_at(node, rule.bias))
        if bias is None:
            continue
        source = dequantized_by(input_at(node, rule.activations[0]))
        if source is None:
            yield f"'{bias.name}': the bias of '{node.name}' is stored as integers, but its input is not"
            continue
        if not has_scale_of_products(bias, source, dequantize):
            yield (
                f"'{bias.name}': the bias of '{node.name}' does not have the scale of its input times "
                "that of its weight, which integer kernels assume"
            )


def _activation_quantizers(model: ir.Model) -> Iterator[ir.Node]:
    for node in every_node(model.graph):
        if node.op_type == QUANTIZE and node.inputs[0] is not None and not is_constant(node.inputs[0]):
            yield node


def _weighted(model: ir.Model, target: Target) -> Iterator[tuple[ir.Node, OpRule, ir.Node]]:
    """Yield each operator with a weight that is stored as integers, and its DequantizeLinear."""
    for node in every_node(model.graph):
        rule = rule_of(node, target)
        for index in (rule.weight, *rule.constants) if rule is not None else ():
            dequantize = dequantized_by(input_at(node, index))
            if rule is None or dequantize is None:
                continue
            if stored_integers(dequantize) is not None or is_constant_pair(dequantize):
                yield node, rule, dequantize


RULES = (
    Rule("pairs", "each QuantizeLinear is read by DequantizeLinears with its own parameters", _pairs),
    Rule("formats", "activations have the target's integer formats", _formats),
    Rule("types", "factors have one type, which the target has a kernel for", type_faults),
    Rule("zero points", "weights are symmetric, and activations if the target's are", _zero_points),
    Rule("weights", "scales are along the output channels, and integers fit the target's bits", _weights),
    Rule("biases", "a bias has the scale of its input times that of its weight", _biases),
    Rule(
        "storage",
        "weights are stored as integers or as floats before a Q/DQ pair, as the target expects",
        storage_faults,
    ),
    Rule(
        "residuals",
        "if an operator fuses the sum after it, the other input of the sum is quantized",
        residual_faults,
    ),
    Rule("results", "results are quantized where a kernel or an operator requires it", result_faults),
    Rule(
        "ties",
        "operators that only move values, and those that the target ties, have one scale on all edges",
        shared_faults,
    ),
    Rule("opset", "the opset has the target's operators and the graph's integer types", opset_faults),
)
