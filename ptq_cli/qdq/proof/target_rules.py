"""Rules of a target that the whole graph shows: what is stored how, what is quantized, what is tied."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at, sole_reader
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE, dequantized_by, quantized_by
from ptq_cli.plan.masks import carries_mask
from ptq_cli.plan.neighbours import Rules, clamp_behind, input_fused_behind, moved_inputs, moved_outputs
from ptq_cli.plan.refusals import attribute_refusal, clamp_refusal, float_refusal, output_refusal
from ptq_cli.plan.target.rules import ONNXRUNTIME, OpRule, Target
from ptq_cli.qdq.metadata import has_chosen_layers
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.read.pair_grids import Grid, grid_of
from ptq_cli.qdq.read.stored_constants import is_constant_pair

WIDE_OPSET = 21
WIDE = (ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4)


def opset_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield an opset that is older than the target, or the integers of the graph, need."""
    opset = model.opset_imports.get("", 0)
    if opset < target.opset:
        yield f"the opset is {opset}, the target needs {target.opset}"
    for node in model.graph:
        if node.op_type == DEQUANTIZE and opset < WIDE_OPSET and grid_of(node).dtype in WIDE:
            yield f"'{node.name}' reads {grid_of(node).dtype.name.lower()}, which needs opset {WIDE_OPSET}"


def storage_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield weights that are not stored as the target takes them, and biases where it wants floats."""
    for node in model.graph:
        source = node.inputs[0] if node.op_type == DEQUANTIZE else None
        if target.bias.format == "float" and source is not None and source.dtype == ir.DataType.INT32:
            yield f"'{node.name}' dequantizes int32, the target takes biases as floats"
        rule = Rules(target).of(node)
        if rule is None or rule.kind != "compute":
            continue
        bias = dequantized_by(input_at(node, rule.bias))
        if target.bias.format == "float" and bias is not None and grid_of(bias).dtype != ir.DataType.INT32:
            yield f"'{bias.name}' quantizes the bias of '{node.name}', the target takes biases as floats"
        value = input_at(node, rule.weight)
        dequantize = dequantized_by(value)
        if dequantize is None or grid_of(dequantize).block_size or _is_computed(dequantize):
            continue
        wanted = target.weight_rule(node.op_type).stored
        if is_constant_pair(dequantize) != (wanted == "pairs"):
            words = "floats behind a pair" if wanted == "pairs" else "integers"
            yield f"the weight of '{node.name}' is not stored as {words}"


def result_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators whose result must be quantized and is not, or is and must not be.

    Of a target that ONNX Runtime executes nothing: what it makes of a graph shows which operators that leaves
    in float, and a result that is quantized for nobody it computes in integers all the same.
    """
    if target.runtime == ONNXRUNTIME:
        return
    rules = Rules(target)
    for node in model.graph:
        rule = rules.of(node)
        if rule is None or rule.kind != "compute" or not is_quantized(node, rule):
            continue
        if rule.output == "always":
            behind = clamp_behind(node, rules)
            results = [item.outputs[0] for item in (node, behind) if item is not None]
            if not any(quantized_by(value) for value in results):
                yield f"the result of '{node.name}' is not quantized, and the target wants it so"
        else:
            yield from _needless(node, rule, rules)


def residual_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield sums of a quantized result that an operator before them takes, with another side in float.

    What no target quantizes, a constant or what a mask was added to, is no such side. A file of ptq's with
    layers that a user keeps in float is not asked: one of them may be that side, or the sum.
    """
    if has_chosen_layers(model):
        return
    rules = Rules(target)
    for node in model.graph:
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
                    f"{node.op_type} '{node.name}' goes into '{before.name}', and its other side "
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
    """Yield operators whose edges must have one scale and zero point, and have several."""
    rules = Rules(target)
    # ONNX Runtime leaves what moves values from one scale to another in float, and the operators show that.
    moves = target.runtime != ONNXRUNTIME and not has_chosen_layers(model)
    for node in model.graph:
        rule = rules.of(node)
        if rule is None or not ((rule.kind == "same" and moves) or (rule.kind == "join" and rule.ties)):
            continue
        outputs = moved_outputs(node, rule)
        if attribute_refusal(node, rule) or (rule.kind == "same" and output_refusal(node, len(outputs))):
            continue  # It is float, between pairs of its own.
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
            yield f"the edges of {node.op_type} '{node.name}' have {len(grids)} scales, and must share one"


def is_quantized(node: ir.Node, rule: OpRule) -> bool:
    """Tell whether a compute operator reads quantized activations, and a quantized weight if it has one."""
    indices = {*rule.activations, *([] if rule.weight is None else [rule.weight])}
    values = [value for index in indices if (value := input_at(node, index)) is not None]
    return bool(values) and all(dequantized_by(value) is not None for value in values)


def _is_computed(dequantize: ir.Node) -> bool:
    """Tell whether a pair quantizes what is computed at run time: both sides of a MatMul may be."""
    source = dequantize.inputs[0]
    producer = source.producer() if source is not None else None
    return producer is not None and producer.op_type == QUANTIZE and not is_constant_pair(dequantize)


def _readers(quantizer: ir.Node) -> set[ir.Node]:
    return {reader for pair, _ in quantizer.outputs[0].uses() for reader, _ in pair.outputs[0].uses()}


def _needless(node: ir.Node, rule: OpRule, rules: Rules) -> Iterator[str]:
    for quantizer in quantized_by(node.outputs[0]):
        readers = _readers(quantizer)
        if not any(rules.of(reader) is not None or reader.op_type in rule.merged_by for reader in readers):
            yield f"the result of '{node.name}' is quantized, and no integer operator reads it"
        pair = sole_reader(quantizer.outputs[0]) if sole_reader(node.outputs[0]) is quantizer else None
        reader = sole_reader(pair.outputs[0]) if pair is not None else None
        behind = rules.of(reader)
        if reader is None or behind is None:
            continue
        into = f"{reader.op_type} '{reader.name}'"
        if behind.kind == "clamp" and not clamp_refusal(reader):
            yield f"the result of '{node.name}' is quantized before the {into} that goes into it"
        if node.op_type in behind.fused_behind and input_fused_behind(reader, behind) is None:
            yield f"the result of '{node.name}' is quantized before the {into} that it goes into"
