"""Which pairs stand around a value, past the operators that a runtime moves a pair over."""

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at, is_nested, nested_graphs, sole_reader
from ptq_cli.models.integer_operators import MICROSOFT
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE, is_pair_node
from ptq_cli.plan.graph_questions import (
    COMPUTED,
    Rules,
    attribute_refusal,
    bias_refusal,
    clamp_behind,
    clamp_refusal,
    clip_bound,
    fits_below,
    has_fixed_shape,
    input_fused_behind,
    integers_refusal,
    is_constant,
    is_merged,
    is_vector,
    merges_bias_add,
    moved_inputs,
    moved_outputs,
    no_rule,
    output_refusal,
    rule_of,
)
from ptq_cli.plan.nested_layers import CONTAINS_LAYERS
from ptq_cli.plan.target.rules import ONNXRUNTIME, QUICK_GELU, OpRule, Target
from ptq_cli.qdq.read.pair_grids import (
    Grid,
    grid_of,
    has_scale_of_products,
    is_constant_pair,
    is_stored_as_product,
    stored_integers,
)

CARRIED_PAST = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators past which ONNX Runtime 1.31 moves a lone QuantizeLinear up and a DequantizeLinear down."""


def _carries_pairs(node: ir.Node, target: Target) -> bool:
    """Return whether a runtime moves a pair past an operator that moves values: ONNX Runtime not past all."""
    rule = rule_of(node, target)
    if rule is None or rule.kind != "same":
        return False
    return target.runtime != ONNXRUNTIME or node.op_type in CARRIED_PAST


def restored_by(value: ir.Value | None, target: Target) -> ir.Node | None:
    """Return the DequantizeLinear that a value comes from, past operators that move values; None if none."""
    while value is not None:
        producer = value.producer()
        if producer is None or producer.op_type == DEQUANTIZE:
            return producer
        if not _carries_pairs(producer, target):
            return None
        value = producer.inputs[0]
    return None


def quantizers_behind(value: ir.Value, target: Target) -> Iterator[ir.Node]:
    """Yield the QuantizeLinears that a value reaches, past operators that move values."""
    for reader, index in value.uses():
        if reader.op_type == QUANTIZE and index == 0:
            yield reader
        elif index == 0 and _carries_pairs(reader, target):
            yield from quantizers_behind(reader.outputs[0], target)


def float_reader(value: ir.Value, target: Target) -> str:
    """Return who reads a value as floats, in words; an empty string if nobody does."""
    if value.is_graph_output():
        return f"'{value.name}' is an output of {'its nested graph' if is_nested(value) else 'the model'}"
    for reader, index in value.uses():
        if reader.op_type == QUANTIZE and index == 0:
            continue
        if index == 0 and _carries_pairs(reader, target):
            if found := float_reader(reader.outputs[0], target):
                return found
            continue
        return f"{reader.op_type} '{reader.name}' reads '{value.name}'"
    return ""


# Why a value of a quantized graph is not one that an integer kernel reads or returns.


def input_reason(value: ir.Value, what: str, target: Target) -> str:
    """Return why an input is not quantized as a kernel reads it, or an empty string; ``what`` names it."""
    source = restored_by(value, target)
    if source is not None:
        computed = stored_integers(source) is None and not is_constant_pair(source)
        several = "has one scale per index of an axis, and no integer kernel supports that"
        return f"its {what} '{value.name}' {several}" if computed and grid_of(source).per_axis else ""
    if is_constant(value):
        return f"its {what} '{value.name}' is a float constant"
    producer = value.producer()
    origin = (
        f"it comes from {producer.op_type} '{producer.name}'"
        if producer is not None
        else "it is a model input"
    )
    return f"its {what} '{value.name}' is not quantized: {origin}"


def types_reason(node: ir.Node, indices: Sequence[int], target: Target) -> str:
    """Return why a target has no kernel for the types of a node's integers, or an empty string."""
    grids = grids_of(node, indices, target)
    for grid in grids:
        if grid.block_size:
            return "it has one scale per block, and no integer kernel supports that"
        if grid.scale is None or grid.zero_point is None:
            return "its scale is computed at run time"
        if type_name(grid.dtype) not in _read_formats(target):
            # All that ONNX Runtime computes has 8 bits; of another runtime the activations tell.
            computed = "8 bits" if target.runtime == ONNXRUNTIME else target.activation.format
            return f"it reads {type_name(grid.dtype)}, but target {target.name} computes {computed}"
    names = [type_name(grid.dtype) for grid in grids]
    if target.runtime == ONNXRUNTIME and names[:2] == ["int8", "uint8"]:
        return "it reads int8 and uint8 in this order, and there is no integer kernel for that"
    results = [type_name(grid_of(item).dtype) for item in quantizers_behind(node.outputs[0], target)]
    if names and results and results[0] != names[0]:
        return f"it reads {names[0]} and returns {results[0]}"
    return ""


def _read_formats(target: Target) -> set[str]:
    """Return the integer formats that a target's kernels read, of activations and weights."""
    if target.runtime == ONNXRUNTIME:
        return {"uint8", "int8"}
    results = {rule.result.format for rule in target.op.values() if rule.result is not None}
    return {target.activation.format, *target.activation.formats, *results, target.weight.format}


def grids_of(node: ir.Node, indices: Sequence[int], target: Target) -> list[Grid]:
    """Return the grids of those of a node's inputs that are quantized."""
    sources = (restored_by(input_at(node, index), target) for index in indices)
    return [grid_of(source) for source in sources if source is not None]


def output_reason(node: ir.Node, target: Target) -> str:
    """Return why a node's result is not quantized directly."""
    output = node.outputs[0]
    clamp = clamp_behind(node, Rules(target))
    if clamp is not None:
        result = clamp.outputs[0]
        for quantizer in quantizers_behind(result, target):
            if reason := cut_reason(clamp, grid_of(quantizer), target):
                return reason
        output = result
    return result_reason(output, target)


def result_reason(output: ir.Value, target: Target) -> str:
    """Return why a value is not quantized for all its readers, or an empty string."""
    reader = float_reader(output, target)
    if not any(quantizers_behind(output, target)):
        return f"its result is not quantized: {reader or 'nothing reads it'}"
    return f"its result is also read as floats: {reader}" if reader else ""


def cut_reason(clamp: ir.Node, grid: Grid, target: Target) -> str:
    """Return why a Relu or Clip is not redundant before a grid, or an empty string if it is.

    A bound within half a step of the grid's end clips nothing that the grid could represent.
    """
    ends = grid.ends
    # Other runtimes have kernels that include the clamp.
    if ends is None or grid.scale is None or target.runtime != ONNXRUNTIME:
        return ""
    low, high = (0.0, None) if clamp.op_type == "Relu" else (clip_bound(clamp, 1), clip_bound(clamp, 2))
    low, high = (-math.inf if low is None else low, math.inf if high is None else high)
    half = float(grid.scale.reshape(-1)[0]) / 2
    for bound, end, beyond in ((low, ends[0], ends[0] < low - half), (high, ends[1], ends[1] > high + half)):
        if beyond:
            return (
                f"{clamp.op_type} '{clamp.name}' is needed: it clips at {bound:.4g}, but the grid "
                f"after it reaches {end:.4g}"
            )
    return ""


def type_name(dtype: ir.DataType) -> str:
    """Return the name of a type as messages have it."""
    return dtype.name.lower()


# Why an operator of a quantized graph stays in float, as a sentence for each rule of the target.


def float_reason(node: ir.Node, target: Target) -> str:
    """Return why a target computes a node in float, or an empty string if its rules make it integer.

    The planner's reasons are about a float graph; these are about a graph that has its Q/DQ already, whoever
    placed them. For a target that ONNX Runtime executes, they include what ONNX Runtime was measured to do.
    """
    if nested_graphs(node):
        return CONTAINS_LAYERS
    rule = rule_of(node, target)
    if rule is None:
        return integers_refusal(node) or _float_form(node, target) or no_rule(node, target)
    if reason := attribute_refusal(node, rule):
        return reason
    if rule.kind == "apart" or not rule.integer_kernel:
        return rule.note
    if rule.integer_form:
        return f"there is no integer {node.op_type}; ptq writes one between quantized tensors as Add and Mul"
    checks = {"compute": _compute, "join": _join, "same": _same, "clamp": _clamp, "stored": _stored}
    return next(filter(None, checks[rule.kind](node, rule, target)), "")


def _float_form(node: ir.Node, target: Target) -> str:
    """Return the reason for a node that is the float form of another operator, or an empty string."""
    if node.op_type == QUICK_GELU and node.domain == MICROSOFT and target.runtime == ONNXRUNTIME:
        return COMPUTED
    spelled = [name for name, rule in target.op.items() if rule.float_form == node.op_type]
    return (
        f"is {spelled[0]} of floats, written so that it is not merged into a slower kernel" if spelled else ""
    )


def _compute(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:
    for index in rule.factors:
        value = input_at(node, index)
        if value is not None:
            what = "weight" if index == rule.weight and index not in rule.activations else "input"
            yield input_reason(value, what, target)
    yield types_reason(node, rule.factors, target)
    output = output_reason(behind_bias(node, rule, target), target)
    if target.bias.format == "int32":
        yield _bias_reason(node, rule, target, result_is_float=bool(output))
    if rule.output == "always":
        yield output
    elif output and (follower := _merging(node, rule, target)):
        yield f"merged into {follower.op_type} '{follower.name}' after it, in float: {output}"


def _stored(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:  # noqa: ARG001 - as the others
    for index in rule.constants:
        value = input_at(node, index)
        producer = value.producer() if value is not None else None
        if value is not None and is_constant(value):
            yield f"its weight '{value.name}' is a float constant"
        elif value is not None and not is_pair_node(producer) and not is_stored_as_product(value):
            yield f"its weight '{value.name}' is computed at run time"
    yield rule.note


def _bias_reason(node: ir.Node, rule: OpRule, target: Target, *, result_is_float: bool) -> str:
    bias = input_at(node, rule.bias)
    producer = bias.producer() if bias is not None else None
    if bias is None or _is_int32(bias):
        return _scale_reason(node, rule, bias, target)
    if producer is not None and is_pair_node(producer):
        return f"its bias '{bias.name}' is {type_name(grid_of(producer).dtype)}, not int32"
    if result_is_float:
        return f"its bias '{bias.name}' is not int32, and its result is not quantized"
    return bias_refusal(bias)


def _scale_reason(node: ir.Node, rule: OpRule, bias: ir.Value | None, target: Target) -> str:
    indices = (rule.activations[0], rule.weight)
    source, weight = (restored_by(input_at(node, index), target) for index in indices)
    producer = bias.producer() if bias is not None else None
    if bias is None or producer is None or source is None or weight is None:
        return ""
    fits = has_scale_of_products(producer, source, weight)
    return (
        ""
        if fits
        else f"its bias '{bias.name}' does not have the scale of its input times that of its weight"
    )


def _merging(node: ir.Node, rule: OpRule, target: Target) -> ir.Node | None:
    """Return the operator that a runtime merges a node into, in float, before it places integer kernels."""
    uses = list(node.outputs[0].uses())
    follower = uses[0].node if len(uses) == 1 else None
    behind = rule_of(follower, target)
    if follower is not None and behind is not None and behind.kind == "clamp":
        return follower if follower.outputs[0].uses() and target.runtime == ONNXRUNTIME else None
    follower = sole_reader(node.outputs[0])
    if follower is None or any(_is_int32(value) for value in follower.inputs if value is not None):
        return None  # An int32 vector becomes the bias of an integer Gemm.
    source = node.inputs[0]
    fixed = follower.op_type == "Add" and source is not None and has_fixed_shape(source)
    adds_vector = any(_is_vector(value, node.outputs[0]) for value in follower.inputs if value is not None)
    is_gemm = follower.op_type in rule.merged_by and fixed and adds_vector
    return follower if is_gemm or is_merged(node, rule) else None


def _is_vector(value: ir.Value, product: ir.Value) -> bool:
    producer = value.producer()
    stored = stored_integers(producer) if producer is not None and is_pair_node(producer) else value
    return stored is not None and is_constant(stored) and is_vector(stored) and fits_below(stored, product)


def _is_int32(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and is_pair_node(producer) and grid_of(producer).dtype == ir.DataType.INT32


def behind_bias(node: ir.Node, rule: OpRule, target: Target) -> ir.Node:
    """Return the Add of a MatMul's bias that its integer kernel includes, or else the node itself."""
    add = sole_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or not rule.bias_add or not merges_bias_add(node, rule, target):
        return node
    others = [value for value in add.inputs if value is not None and value is not node.outputs[0]]
    if target.bias.format == "int32":
        return add if any(map(_is_int32, others)) else node
    return add if any(_is_vector(value, node.outputs[0]) for value in others) else node


def is_merged_bias(node: ir.Node, target: Target) -> bool:
    """Return whether a node adds the bias of an integer MatMul whose kernel includes it."""
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        rule = rule_of(producer, target)
        if producer is not None and rule is not None and behind_bias(producer, rule, target) is node:
            return not float_reason(producer, target)
    return False


def _join(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:
    taken = input_fused_behind(node, rule)
    values = [value for value in moved_inputs(node, rule) if value is not taken]
    if any(map(_is_int32, values)):
        product = next((value for value in values if not _is_int32(value)), node.outputs[0])
        yield f"adds a bias to the float result of '{product.name}'"
    for value in values:
        yield input_reason(value, "input", target)
    indices = [index for index, value in enumerate(node.inputs) if value in values]
    yield types_reason(node, indices, target)
    names = sorted({type_name(grid.dtype) for grid in grids_of(node, indices, target)})
    yield f"its inputs are {' and '.join(names)}" if len(names) > 1 else ""
    yield output_reason(node, target)


def _same(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:
    moved, outputs = moved_inputs(node, rule), moved_outputs(node, rule)
    yield output_refusal(node, len(outputs))
    for value in node.inputs:
        if value is not None and any(value is item for item in moved):
            yield input_reason(value, "input", target)
        elif value is not None and is_pair_node(value.producer()):
            yield f"its input '{value.name}' is quantized, but is not one of the values that it moves"
    sources = [restored_by(value, target) for value in moved]
    grids = [grid_of(source) for source in sources if source is not None]
    for output in outputs:
        yield result_reason(output, target)
        for quantizer in quantizers_behind(output, target):
            if not all(grid.equals(grid_of(quantizer)) for grid in grids):
                yield f"its input and its result have different scales or zero points ('{quantizer.name}')"


def _clamp(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:  # noqa: ARG001 - as the others
    yield clamp_refusal(node)
    reader = float_reader(node.outputs[0], target)
    yield f"its result is not quantized: {reader}" if reader else ""
    for quantizer in quantizers_behind(node.outputs[0], target):
        yield cut_reason(node, grid_of(quantizer), target)
