"""Proof: a quantized graph is well formed and follows the target's rules, whoever wrote it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import onnx_ir as ir

from ptq_cli.core.formats import FLOATS, IntegerFormat
from ptq_cli.models.graph_reading import every_node, input_at, sole_reader
from ptq_cli.models.opset import QUARTER_BYTE_OPSET
from ptq_cli.models.pair_operators import (
    CONV_INTEGER,
    DEQUANTIZE,
    DYNAMIC_LSTM,
    KERNEL_PARAMETERS,
    MATMUL_INTEGER,
    QUANTIZE,
    clips_integers,
    dequantized_by,
    integers_of,
    is_dynamic_quantize,
    is_integer_operator,
    quantizer_of,
)
from ptq_cli.plan.graph_questions import is_constant, weight_axis
from ptq_cli.plan.left_layers import has_parameters_of
from ptq_cli.plan.refusals import Rules, rule_of
from ptq_cli.plan.target.rules import ONNXRUNTIME, BlockRule, OpRule, Target
from ptq_cli.qdq.proof.placement_faults import residual_faults, result_faults, shared_faults, type_faults
from ptq_cli.qdq.read.pair_grids import FORMATS, PairGrid, grid_of, has_scale_of_products
from ptq_cli.qdq.read.stored_constants import is_constant_pair, is_unpacked, stored_integers

TakesIntegers = Callable[[ir.Node], bool]


def structure_faults(model: ir.Model, takes_integers: TakesIntegers = lambda _: False) -> Iterator[str]:
    """Yield what is wrong with the Q/DQ structure of a model; nothing if it is correct.

    The rules: each QuantizeLinear is read, and only by DequantizeLinears with the same parameters, which may
    be behind a Clip of its integers, or by MatMulInteger (``_is_clamped_sum`` tells the one exception); each
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
        multiplies = reader.op_type in (CONV_INTEGER, MATMUL_INTEGER)
        if multiplies or clips_integers(reader) or takes_integers(reader):
            continue
        if reader.op_type != DEQUANTIZE:
            found = f"{reader.op_type} '{reader.name}'"
            yield f"'{node.name}' is read by {found}, which is not a DequantizeLinear"
        elif not has_parameters_of(node, reader) and not _is_clamped_sum(node, reader):
            yield f"'{reader.name}' does not have the parameters of '{node.name}'"


def _dequantize_faults(node: ir.Node, takes_integers: TakesIntegers) -> Iterator[str]:
    source, scale = node.inputs[0], node.inputs[1]
    if source is not None and not _is_integer(source, takes_integers):
        yield f"'{node.name}' reads neither a QuantizeLinear nor a constant"
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        yield f"'{node.name}' is not read by any node"
    values = scale.const_value.numpy() if scale is not None and scale.const_value is not None else None
    if values is not None and not ((values > 0) & (values < float("inf"))).all():
        yield f"'{node.name}' has a scale that is not positive and finite"


def _is_integer(source: ir.Value, takes_integers: TakesIntegers) -> bool:
    producer = source.producer()
    if quantizer_of(source) is not None or is_dynamic_quantize(producer):
        return True
    if producer is not None and clips_integers(producer):  # to fewer bits
        producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
    if producer is not None and takes_integers(producer):
        return True
    return is_unpacked(source) or source.is_graph_input()


def _is_clamped_sum(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Tell whether two nodes are the pair in ``x * clip(x + c, 0, d) * f``, with f in the second one's scale.

    The two have one zero point; and the pair stands between an Add of x and a Mul by the same x alone.
    """
    total = quantize.inputs[0].producer() if quantize.inputs[0] is not None else None
    product = sole_reader(dequantize.outputs[0])
    if total is None or product is None or (total.op_type, product.op_type) != ("Add", "Mul"):
        return False
    if input_at(quantize, 2) is not input_at(dequantize, 2) or grid_of(dequantize).parameters is None:
        return False
    factor = next((value for value in product.inputs if value is not dequantize.outputs[0]), None)
    return factor is not None and factor in total.inputs and sole_reader(total.outputs[0]) is quantize


HALF_SCALE_OPSET = 19  # the first with scales of float16
FLOAT_OPSETS = {"float8e4m3fn": 19, "float4e2m1": 23}
# The first opset whose QuantizeLinear and DequantizeLinear have a format, if not the oldest.
TYPE_OPSETS = {
    **FLOAT_OPSETS,
    **dict.fromkeys(("int16", "uint16", "int4", "uint4"), 21),
    **dict.fromkeys(("int2", "uint2"), QUARTER_BYTE_OPSET),
}


@dataclass(frozen=True)
class Fault:
    """A place where a graph breaks a rule."""

    rule: Annotated[str, "The rule's name."]
    text: Annotated[str, "What breaks it, with the names of nodes."]


@dataclass(frozen=True)
class _Rule:
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
        # A file may have integer operators, which ONNX Runtime's own tool also writes. A Pad is one of
        # channels: of zeros, that is, which a QuantizeLinear has as its zero point.
        rule = rule_of(node, target)
        moves = node.op_type == "Pad" or (rule is not None and rule.kind == "same")
        return target.runtime == ONNXRUNTIME and (moves or is_integer_operator(node.op_type))

    yield from structure_faults(model, takes_integers)


def _allowed(target: Target) -> list[str]:
    # A tie carries the format of an operator's result to other tensors.
    rules = [target.activation, *(rule.result for rule in target.op.values() if rule.result)]
    return list(
        dict.fromkeys(name for rule in rules for name in (rule.format, *rule.formats, *rule.simulated))
    )


def _formats(model: ir.Model, target: Target) -> Iterator[str]:
    wanted = _allowed(target)
    for node, grid in _activation_grids(model):
        if grid.type_name not in wanted:
            yield f"'{node.name}' is {grid.type_name}, but the target expects {' or '.join(wanted)}"
        if grid.per_axis or grid.block_size:
            yield f"'{node.name}' has several scales, but the target expects one scale for an activation"
    if target.runtime == ONNXRUNTIME:
        return  # It has kernels for unsigned weights, too.
    for node, op, dequantize in _weighted(model, target):
        grid, rule = grid_of(dequantize), target.weight_rule(node.op_type)
        if op.blocks is not None and _is_read_in_blocks(grid, op.blocks):
            continue
        found, wanted = grid.type_name, list(dict.fromkeys((rule.format, *rule.formats)))
        if found not in wanted and not (rule.packed and found in ("int4", "uint4")):
            yield f"'{dequantize.name}' is {found}, but the target expects {' or '.join(wanted)} for a weight"


def _is_read_in_blocks(grid: PairGrid, blocks: BlockRule) -> bool:
    formats = [IntegerFormat(bits, signed=True).name for bits in blocks.bits]
    return grid.block_size in blocks.sizes and grid.type_name in formats


def _zero_points(model: ir.Model, target: Target) -> Iterator[str]:
    weights = {id(dequantize): dequantize for _, _, dequantize in _weighted(model, target)}
    for node in weights.values():
        grid = grid_of(node)
        if not grid.block_size and not _is_zero_point(grid, _center(grid.dtype)):
            yield f"'{node.name}': the weight's zero point is not {_center(grid.dtype)}"
    for node, grid in _activation_grids(model) if target.activation.symmetric else ():
        # For a type that the target does not have, the zero point of the target's own type.
        is_allowed = grid.type_name in _allowed(target)
        wanted = _center(grid.dtype if is_allowed else ir.DataType[target.activation.format.upper()])
        if not _is_zero_point(grid, wanted):
            zero = "computed" if grid.zero_point is None else int(grid.zero_point.reshape(-1)[0])
            yield f"'{node.name}': the zero point is {zero}, but the target expects {wanted}"


def _is_zero_point(grid: PairGrid, wanted: int) -> bool:
    return grid.zero_point is not None and bool(np.all(grid.zero_point == wanted))


def _center(dtype: ir.DataType) -> int:
    format = FORMATS.get(dtype)
    return 0 if format is None or format.signed else (format.qmax + 1) // 2


def _weights(model: ir.Model, target: Target) -> Iterator[str]:
    for node in every_node(model.graph):
        for index in KERNEL_PARAMETERS if node.op_type == DYNAMIC_LSTM else ():
            integers = input_at(node, index)
            # Products of unsigned weights are added in 32 bits everywhere.
            if integers is not None and integers.dtype == ir.DataType.INT8:
                yield from _too_large(node, integers, target.weight.bits)
    for node, rule, dequantize in _weighted(model, target):
        grid, value = grid_of(dequantize), dequantize.outputs[0]
        if value.shape is None or grid.block_size:
            continue
        axis = weight_axis(node, rule, value)
        if grid.per_axis and axis is not None and grid.axis % max(len(value.shape), 1) != axis:
            found = f"'{dequantize.name}': scales are along axis {grid.axis}"
            yield f"{found}, but {node.op_type} expects axis {axis}"
        bits = target.weight_rule(node.op_type).bits
        yield from _too_large(dequantize, stored_integers(dequantize), bits)


def _too_large(node: ir.Node, integers: ir.Value | None, bits: int) -> Iterator[str]:
    """Yield integers that have more bits than the kernels of a target can add."""
    stored = integers.const_value if integers is not None and bits < 8 else None
    limit = 2 ** (bits - 1)
    if stored is not None and stored.size and np.abs(stored.numpy().astype(np.int64)).max() > limit:
        yield f"'{node.name}': integers beyond ±{limit}, for which 16-bit sums can overflow"


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
        elif not has_scale_of_products(bias, source, dequantize):
            yield (
                f"'{bias.name}': the bias of '{node.name}' does not have the scale of its input times "
                "that of its weight, which integer kernels assume"
            )


def _storage(model: ir.Model, target: Target) -> Iterator[str]:
    has_float_biases = target.bias.format == "float"
    for node in every_node(model.graph):
        source = node.inputs[0] if node.op_type == DEQUANTIZE else None
        if has_float_biases and source is not None and source.dtype == ir.DataType.INT32:
            yield f"'{node.name}' dequantizes int32, but the target expects float biases"
        rule = rule_of(node, target)
        if rule is None or rule.kind != "compute":
            continue
        bias = dequantized_by(input_at(node, rule.bias))
        if has_float_biases and bias is not None and grid_of(bias).dtype != ir.DataType.INT32:
            yield f"'{bias.name}' quantizes the bias of '{node.name}', but the target expects float biases"
        dequantize = dequantized_by(input_at(node, rule.weight))
        if dequantize is None:
            continue
        grid, is_pair = grid_of(dequantize), is_constant_pair(dequantize)
        # A pair may quantize a value computed at run time, as both sides of a MatMul may be.
        is_computed = quantizer_of(dequantize.inputs[0]) is not None and not is_pair
        wanted = target.weight_rule(node.op_type).stored
        if grid.block_size or is_computed:
            continue
        if grid.type_name in FLOATS:
            if is_pair:
                yield f"the weight of '{node.name}' is not stored as {grid.type_name}"
        elif is_pair != (wanted == "pairs"):
            words = "floats before a Q/DQ pair" if wanted == "pairs" else "integers"
            yield f"the weight of '{node.name}' is not stored as {words}"


def _opset(model: ir.Model, target: Target) -> Iterator[str]:
    opset = model.opset_imports.get("", 0)
    if opset < target.opset:
        yield f"the opset is {opset}, but the target needs {target.opset}"
    for node in every_node(model.graph):
        if node.op_type != DEQUANTIZE:
            continue
        scale, name = node.inputs[1], grid_of(node).type_name
        if opset < HALF_SCALE_OPSET and scale is not None and scale.dtype == ir.DataType.FLOAT16:
            yield f"'{node.name}' has a scale of float16, which needs opset {HALF_SCALE_OPSET}"
        if opset < (needed := TYPE_OPSETS.get(name, 0)):
            yield f"'{node.name}' reads {name}, which needs opset {needed}"


def _activation_grids(model: ir.Model) -> Iterator[tuple[ir.Node, PairGrid]]:
    for node in every_node(model.graph):
        if node.op_type == QUANTIZE and node.inputs[0] is not None and not is_constant(node.inputs[0]):
            yield node, grid_of(node)


def _weighted(model: ir.Model, target: Target) -> Iterator[tuple[ir.Node, OpRule, ir.Node]]:
    """Yield each operator with a weight that is stored as integers, and its DequantizeLinear."""
    for node, rule in Rules(target).ruled(model.graph):
        for index in (rule.weight, *rule.constants):
            pair = dequantized_by(input_at(node, index))
            if pair is not None and (stored_integers(pair) is not None or is_constant_pair(pair)):
                yield node, rule, pair


RULES = (
    _Rule("pairs", "each QuantizeLinear is read by DequantizeLinears with its own parameters", _pairs),
    _Rule("formats", "activations have the target's integer formats", _formats),
    _Rule("types", "factors have one type, which the target has a kernel for", type_faults),
    _Rule("zero points", "weights are symmetric, and activations if the target's are", _zero_points),
    _Rule("weights", "scales are along the output channels, and integers fit the target's bits", _weights),
    _Rule("biases", "a bias has the scale of its input times that of its weight", _biases),
    _Rule(
        "storage",
        "weights are stored as integers or as floats before a Q/DQ pair, as the target expects",
        _storage,
    ),
    _Rule(
        "residuals",
        "if an operator fuses the sum after it, the other input of the sum is quantized",
        residual_faults,
    ),
    _Rule("results", "results are quantized where a kernel or an operator requires it", result_faults),
    _Rule(
        "ties",
        "operators that only move values, and those that the target ties, have one scale on all edges",
        shared_faults,
    ),
    _Rule("opset", "the opset has the target's operators and the graph's integer types", _opset),
)
