"""Rules of a target about the whole graph: how constants are stored, what is quantized, what is tied."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.core.numbers.formats import FLOATS
from ptq_cli.models.converting.opset import QUARTER_BYTE_OPSET
from ptq_cli.models.graph.graph_reading import input_at, sole_reader
from ptq_cli.models.operators.pair_operators import (
    DEQUANTIZE,
    dequantized_by,
    integers_of,
    quantized_by,
    quantizer_of,
)
from ptq_cli.plan.questions.masks import carries_mask
from ptq_cli.plan.questions.neighbors import (
    Rules,
    clamp_behind,
    input_fused_behind,
    moved_inputs,
    moved_outputs,
)
from ptq_cli.plan.questions.refusals import attribute_refusal, clamp_refusal, float_refusal, output_refusal
from ptq_cli.plan.target.rules import ONNXRUNTIME, OpRule, Target
from ptq_cli.qdq.metadata import has_chosen_layers
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.proof.float_reasons import behind_bias
from ptq_cli.qdq.read.pair_grids import Grid, grid_of
from ptq_cli.qdq.read.stored_constants import is_constant_pair

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
    for node in model.graph.all_nodes():
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
    for node in model.graph.all_nodes():
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


def result_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators whose result must be quantized and is not, or must not be quantized and is.

    Yields nothing for a target that ONNX Runtime executes: its optimized graph shows which operators stay in
    float, and it computes in integers even if no operator needs the quantized result.
    """
    if target.runtime == ONNXRUNTIME:
        return
    rules = Rules(target)
    for node in model.graph.all_nodes():
        rule = rules.of(node)
        if rule is None or rule.kind != "compute" or not is_quantized(node, rule):
            continue
        if rule.output == "always":
            tail = behind_bias(node, rule, target)
            results = [item.outputs[0] for item in (tail, clamp_behind(tail, rules)) if item is not None]
            if not any(quantized_by(value) for value in results):
                yield f"the result of '{node.name}' is not quantized, but the target requires it"
        else:
            yield from _needless(node, rule, rules)


def residual_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield sums that the operator before them fuses although their other input is in float.

    Inputs that no target quantizes (constants, and values to which a mask was added) do not count. A file
    that ptq wrote with layers kept in float by the user is not checked, because one of these may be the input
    or the sum.
    """
    if has_chosen_layers(model):
        return
    rules = Rules(target)
    for node in model.graph.all_nodes():
        rule = rules.of(node)
        taken = input_fused_behind(node, rule) if rule is not None and rule.kind == "join" else None
        before = taken.producer() if taken is not None else None
        computes = rules.of(before)
        if rule is None or before is None or computes is None or not is_quantized(before, computes):
            continue
        behind = clamp_behind(node, rules)
        if not any(quantized_by(item.outputs[0]) for item in (node, behind) if item is not None):
            continue
        for value in moved_inputs(node, rule):
            if value is not taken and restored_by(value, target) is None and _is_quantizable(value, rules):
                yield (
                    f"{node.op_type} '{node.name}' is fused into '{before.name}', but its other input "
                    f"'{value.name}' is not quantized"
                )


def _is_quantizable(value: ir.Value, rules: Rules) -> bool:
    producer = value.producer()
    rule = rules.of(producer)
    if (
        producer is not None
        and rule is not None
        and (rule.kind == "apart" or attribute_refusal(producer, rule))
    ):
        return False
    return not float_refusal(value) and not carries_mask(value)


def shared_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators whose edges must share one scale and zero point but have several."""
    rules = Rules(target)
    # ONNX Runtime runs an operator that moves values between scales in float; the list of operators shows it.
    moves = target.runtime != ONNXRUNTIME and not has_chosen_layers(model)
    for node in model.graph.all_nodes():
        rule = rules.of(node)
        if rule is None or not ((rule.kind == "same" and moves) or (rule.kind == "join" and rule.ties)):
            continue
        outputs = moved_outputs(node, rule)
        if attribute_refusal(node, rule) or (rule.kind == "same" and output_refusal(node, len(outputs))):
            continue  # It is computed in float, between Q/DQ pairs of its own.
        clamp = clamp_behind(node, rules) if rule.kind == "join" else None
        results = [*outputs, *(clamp.outputs[:1] if clamp is not None else [])]
        behind = [quantizer for value in results for quantizer in quantized_by(value)]
        before = [dequantized_by(value) for value in moved_inputs(node, rule)]
        found = [pair for pair in before if pair is not None]
        if not behind or len(found) < len(before):
            continue
        grids: list[Grid] = []
        for grid in (grid_of(pair) for pair in (*found, *behind)):
            if not any(grid.equals(other) for other in grids):
                grids.append(grid)
        if len(grids) > 1:
            yield f"the edges of {node.op_type} '{node.name}' have {len(grids)} scales, but must share one"


def is_quantized(node: ir.Node, rule: OpRule) -> bool:
    """Return whether a compute operator reads quantized activations, and a quantized weight if it has one."""
    indices = {*rule.activations, *([] if rule.weight is None else [rule.weight])}
    values = [value for index in indices if (value := input_at(node, index)) is not None]
    return bool(values) and all(dequantized_by(value) is not None for value in values)


def _is_computed(dequantize: ir.Node) -> bool:
    """Return whether a pair quantizes a value computed at run time, as both sides of a MatMul may be."""
    return quantizer_of(dequantize.inputs[0]) is not None and not is_constant_pair(dequantize)


def _readers(quantizer: ir.Node) -> set[ir.Node]:
    return {reader for pair, _ in integers_of(quantizer).uses() for reader, _ in pair.outputs[0].uses()}


def _needless(node: ir.Node, rule: OpRule, rules: Rules) -> Iterator[str]:
    for quantizer in quantized_by(node.outputs[0]):
        readers = _readers(quantizer)
        if not any(rules.of(reader) is not None or reader.op_type in rule.merged_by for reader in readers):
            yield f"the result of '{node.name}' is quantized, but no integer operator reads it"
        pair = sole_reader(quantizer.outputs[0]) if sole_reader(node.outputs[0]) is quantizer else None
        reader = sole_reader(pair.outputs[0]) if pair is not None else None
        behind = rules.of(reader)
        if reader is None or behind is None:
            continue
        into = f"{reader.op_type} '{reader.name}'"
        if behind.kind == "clamp" and not clamp_refusal(reader):
            yield f"the result of '{node.name}' is quantized before {into}, which is fused into it"
        if node.op_type in behind.fused_behind and input_fused_behind(reader, behind) is None:
            yield f"the result of '{node.name}' is quantized before {into}, into which it is fused"
