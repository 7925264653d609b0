"""Why an operator of a quantized graph stays in float, as a sentence for each rule of the target."""

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at, nested_graphs, rank_of, sole_reader
from ptq_cli.models.operators.dynamic_lstm import MICROSOFT
from ptq_cli.models.operators.pair_operators import is_pair_node
from ptq_cli.plan.questions.graph_questions import fits_below, has_fixed_shape, is_constant, is_vector
from ptq_cli.plan.questions.neighbours import (
    Rules,
    clamp_behind,
    input_fused_behind,
    is_merged,
    moved_inputs,
    moved_outputs,
    rule_of,
)
from ptq_cli.plan.questions.nested_layers import CONTAINS_LAYERS
from ptq_cli.plan.questions.refusals import (
    attribute_refusal,
    bias_refusal,
    clamp_refusal,
    integers_refusal,
    no_rule,
    output_refusal,
)
from ptq_cli.plan.questions.sigmoid_gates import COMPUTED
from ptq_cli.plan.target.rules import ONNXRUNTIME, QUICK_GELU, OpRule, Target
from ptq_cli.qdq.proof.carried_pairs import float_reader, quantizers_behind, restored_by
from ptq_cli.qdq.read.pair_grids import Grid, grid_of, has_scale_of_products
from ptq_cli.qdq.read.stored_constants import is_constant_pair, is_stored_as_product, stored_integers


def float_reason(node: ir.Node, target: Target) -> str:
    """Return why a target computes a node in float, or an empty string if its rules make it integer.

    The planner's reasons are about a float graph; these are about a graph that has its Q/DQ already, whoever
    placed them. For a target that ONNX Runtime executes, they include what ONNX Runtime was measured to do.

    Args:
        node: a node of a graph whose constants are initializers.
        target: the target whose rules apply.
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
    indices = list(dict.fromkeys([*rule.activations, *([rule.weight] if rule.weight is not None else [])]))
    for index in indices:
        value = input_at(node, index)
        if value is not None:
            what = "weight" if index == rule.weight and index not in rule.activations else "input"
            yield _input_reason(value, what, target)
    yield _types_reason(node, indices, target)
    output = _output_reason(node, target)
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
        return f"its bias '{bias.name}' is {_name(grid_of(producer).dtype)}, not int32"
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


def is_merged_bias(node: ir.Node, target: Target) -> bool:
    """Return whether a node adds the int32 bias of an integer MatMul that is merged with it into a Gemm.

    That is what the planner expects of it, too: the input is a matrix, or can be reshaped to one beforehand.
    """
    values = [value for value in node.inputs if value is not None]
    products = [value for value in values if not _is_int32(value)]
    if node.op_type != "Add" or len(values) != 2 or len(products) != 1:
        return False
    producer = products[0].producer()
    rule = rule_of(producer, target)
    if producer is None or rule is None or not rule.bias_add or sole_reader(products[0]) is not node:
        return False
    source = producer.inputs[0]
    is_matrix = source is not None and (rank_of(source) == 2 or has_fixed_shape(source))
    return is_matrix and not float_reason(producer, target)


def _join(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:
    taken = input_fused_behind(node, rule)
    values = [value for value in moved_inputs(node, rule) if value is not taken]
    if any(map(_is_int32, values)):
        product = next((value for value in values if not _is_int32(value)), node.outputs[0])
        yield f"adds a bias to the float result of '{product.name}'"
    for value in values:
        yield _input_reason(value, "input", target)
    indices = [index for index, value in enumerate(node.inputs) if value in values]
    yield _types_reason(node, indices, target)
    names = sorted({_name(grid.dtype) for grid in _grids(node, indices, target)})
    yield f"its inputs are {' and '.join(names)}" if len(names) > 1 else ""
    yield _output_reason(node, target)


def _same(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:
    moved, outputs = moved_inputs(node, rule), moved_outputs(node, rule)
    yield output_refusal(node, len(outputs))
    for value in node.inputs:
        if value is not None and any(value is item for item in moved):
            yield _input_reason(value, "input", target)
        elif value is not None and is_pair_node(value.producer()):
            yield f"its input '{value.name}' is quantized, but is not one of the values that it moves"
    sources = [restored_by(value, target) for value in moved]
    grids = [grid_of(source) for source in sources if source is not None]
    for output in outputs:
        yield _result_reason(output, target)
        for quantizer in quantizers_behind(output, target):
            if not all(grid.equals(grid_of(quantizer)) for grid in grids):
                yield f"its input and its result have different scales or zero points ('{quantizer.name}')"


def _clamp(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:  # noqa: ARG001 - as the others
    yield clamp_refusal(node)
    reader = float_reader(node.outputs[0], target)
    yield f"its result is not quantized: {reader}" if reader else ""
    for quantizer in quantizers_behind(node.outputs[0], target):
        yield _cut_reason(node, grid_of(quantizer), target)


def _input_reason(value: ir.Value, what: str, target: Target) -> str:
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


def _types_reason(node: ir.Node, indices: Sequence[int], target: Target) -> str:
    grids = _grids(node, indices, target)
    for grid in grids:
        if grid.block_size:
            return "it has one scale per block, and no integer kernel supports that"
        if grid.scale is None or grid.zero_point is None:
            return "its scale is computed at run time"
        if _name(grid.dtype) not in _read_formats(target):
            # All that ONNX Runtime computes has 8 bits; of another runtime the activations tell.
            computed = "8 bits" if target.runtime == ONNXRUNTIME else target.activation.format
            return f"it reads {_name(grid.dtype)}, but target {target.name} computes {computed}"
    names = [_name(grid.dtype) for grid in grids]
    if target.runtime == ONNXRUNTIME and names[:2] == ["int8", "uint8"]:
        return "it reads int8 and uint8 in this order, and there is no integer kernel for that"
    results = [_name(grid_of(item).dtype) for item in quantizers_behind(node.outputs[0], target)]
    if names and results and results[0] != names[0]:
        return f"it reads {names[0]} and returns {results[0]}"
    return ""


def _read_formats(target: Target) -> set[str]:
    """Return the integer formats that a target's kernels read, of activations and weights."""
    if target.runtime == ONNXRUNTIME:
        return {"uint8", "int8"}
    results = {rule.result.format for rule in target.op.values() if rule.result is not None}
    return {target.activation.format, *target.activation.formats, *results, target.weight.format}


def _grids(node: ir.Node, indices: Sequence[int], target: Target) -> list[Grid]:
    sources = (restored_by(input_at(node, index), target) for index in indices)
    return [grid_of(source) for source in sources if source is not None]


def _output_reason(node: ir.Node, target: Target) -> str:
    """Return why a node's result is not quantized directly."""
    output = node.outputs[0]
    clamp = clamp_behind(node, Rules(target))
    if clamp is not None:
        result = clamp.outputs[0]
        for quantizer in quantizers_behind(result, target):
            if reason := _cut_reason(clamp, grid_of(quantizer), target):
                return reason
        output = result
    return _result_reason(output, target)


def _result_reason(output: ir.Value, target: Target) -> str:
    reader = float_reader(output, target)
    if not any(quantizers_behind(output, target)):
        return f"its result is not quantized: {reader or 'nothing reads it'}"
    return f"its result is also read as floats: {reader}" if reader else ""


def _cut_reason(clamp: ir.Node, grid: Grid, target: Target) -> str:
    """Return why a Relu or Clip is not redundant before a grid, or an empty string if it is.

    A bound within half a step of the grid's end clips nothing that the grid could represent.
    """
    ends = grid.ends
    # Other runtimes have kernels that include the clamp.
    if ends is None or grid.scale is None or target.runtime != ONNXRUNTIME:
        return ""
    low, high = (0.0, math.inf) if clamp.op_type == "Relu" else _bounds(clamp)
    half = float(grid.scale.reshape(-1)[0]) / 2
    for bound, end, beyond in ((low, ends[0], ends[0] < low - half), (high, ends[1], ends[1] > high + half)):
        if beyond:
            return (
                f"{clamp.op_type} '{clamp.name}' is needed: it clips at {bound:.4g}, but the grid "
                f"after it reaches {end:.4g}"
            )
    return ""


def _bounds(clip: ir.Node) -> tuple[float, float]:
    values = [input_at(clip, index) for index in (1, 2)]
    constants = [value.const_value if value is not None else None for value in values]
    low, high = (constant.numpy().item() if constant is not None else None for constant in constants)
    return (-math.inf if low is None else float(low), math.inf if high is None else float(high))


def _name(dtype: ir.DataType) -> str:
    return dtype.name.lower()
