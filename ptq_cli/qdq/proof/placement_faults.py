"""Rules of a target about quantized results, edges that share a scale, and number types."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ptq_cli.core.formats import FLOATS
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, rank_of, sole_reader
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    FP4_BLOCK,
    dequantized_by,
    four_bit_source,
    integers_of,
    is_dynamic_quantize,
    is_four_bit,
    quantized_by,
)
from ptq_cli.plan.attention_masks import carries_mask
from ptq_cli.plan.left_layers import kernel_refusal
from ptq_cli.plan.refusals import (
    Rules,
    attribute_refusal,
    clamp_behind,
    clamp_refusal,
    float_refusal,
    input_fused_behind,
    moved_inputs,
    moved_outputs,
    output_refusal,
)
from ptq_cli.plan.target.rules import ONNXRUNTIME, OpRule, Target
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.proof.operators import behind_bias
from ptq_cli.qdq.read.pair_grids import PairGrid, grid_of
from ptq_cli.qdq.read.quantized_file import has_chosen_layers
from ptq_cli.qdq.read.stored_constants import stored_integers


def result_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators whose result must be quantized and is not, or must not be quantized and is.

    Yields nothing for a target that ONNX Runtime executes: its optimized graph shows which operators stay in
    float, and it computes in integers even if no operator needs the quantized result.
    """
    if target.runtime == ONNXRUNTIME:
        return
    rules = Rules(target)
    for node, rule in rules.ruled(model.graph, "compute"):
        if not _is_quantized(node, rule):
            continue
        if rule.output != "always":
            yield from _needless(node, rule, rules)
            continue
        tail = behind_bias(node, rule, target)
        if not _has_quantized_result(tail, clamp_behind(tail, rules)):
            yield f"the result of '{node.name}' is not quantized, but the target requires it"


def residual_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield sums that the operator before them fuses although their other input is in float.

    Inputs that no target quantizes (constants, and values to which a mask was added) do not count. A file
    that ptq wrote with layers kept in float by the user is not checked, because one of these may be the input
    or the sum.
    """
    rules = Rules(target)
    for node, rule in rules.ruled(model.graph, "join") if not has_chosen_layers(model) else ():
        taken = input_fused_behind(node, rule)
        before = taken.producer() if taken is not None else None
        computes = rules.of(before)
        if before is None or computes is None or not _is_quantized(before, computes):
            continue
        if not _has_quantized_result(node, clamp_behind(node, rules)):
            continue
        for value in moved_inputs(node, rule):
            if value is not taken and restored_by(value, target) is None and _is_quantizable(value, rules):
                yield (
                    f"{node.op_type} '{node.name}' is fused into '{before.name}', but its other input "
                    f"'{value.name}' is not quantized"
                )


def shared_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators whose edges must share one scale and zero point but have several."""
    rules = Rules(target)
    # ONNX Runtime runs an operator that moves values between scales in float; the list of operators shows it.
    moves = target.runtime != ONNXRUNTIME and not has_chosen_layers(model)
    for node, rule in rules.ruled(model.graph, "same", "join"):
        outputs = moved_outputs(node, rule)
        if not (moves if rule.kind == "same" else rule.ties):
            continue
        if attribute_refusal(node, rule) or (rule.kind == "same" and output_refusal(node, len(outputs))):
            continue  # It is computed in float, between Q/DQ pairs of its own.
        clamp = clamp_behind(node, rules) if rule.kind == "join" else None
        results = [*outputs, *(clamp.outputs[:1] if clamp is not None else [])]
        behind = [quantizer for value in results for quantizer in quantized_by(value)]
        before = [dequantized_by(value) for value in moved_inputs(node, rule)]
        found = [pair for pair in before if pair is not None]
        if not behind or len(found) < len(before):
            continue
        grids: list[PairGrid] = []
        for grid in (grid_of(pair) for pair in (*found, *behind)):
            if not any(grid.equals(other) for other in grids):
                grids.append(grid)
        if len(grids) > 1:
            yield f"the edges of {node.op_type} '{node.name}' have {len(grids)} scales, but must share one"


def _has_quantized_result(*nodes: ir.Node | None) -> bool:
    return any(quantized_by(node.outputs[0]) for node in nodes if node is not None)


def _is_quantizable(value: ir.Value, rules: Rules) -> bool:
    producer = value.producer()
    rule = rules.of(producer)
    is_apart = (
        producer is not None
        and rule is not None
        and bool(rule.kind == "apart" or attribute_refusal(producer, rule))
    )
    return not is_apart and not float_refusal(value) and not carries_mask(value)


def _is_quantized(node: ir.Node, rule: OpRule) -> bool:
    """Tell whether a compute operator reads quantized activations, and a quantized weight if it has one."""
    values = [value for index in rule.factors if (value := input_at(node, index)) is not None]
    return bool(values) and all(dequantized_by(value) is not None for value in values)


def _readers(quantizer: ir.Node) -> set[ir.Node]:
    found = {reader for pair, _ in integers_of(quantizer).uses() for reader, _ in pair.outputs[0].uses()}
    # A Pad between pairs of one grid gives the operator behind it its integers (``counted_padding``).
    pads = [quantized_by(reader.outputs[0]) for reader in found if reader.op_type == "Pad"]
    return found.union(*(_readers(behind) for behinds in pads for behind in behinds))


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
    if size != FP4_BLOCK:
        yield f"'{node.name}' has blocks of {size}, but the target expects {FP4_BLOCK}"
    producer = dequantized_by(scale)
    scales = producer.inputs[0] if producer is not None else None
    if producer is None or scales is None or scales.dtype != ir.DataType.FLOAT8E4M3FN:
        yield f"the scales of '{node.name}' are not float8e4m3fn behind a DequantizeLinear"
    elif not _is_one_number(producer.inputs[1]):
        yield f"the scales of '{node.name}' are not multiplied by one positive float32"


def _dynamic_faults(node: ir.Node) -> Iterator[str]:
    wanted = {"axis": -1, "block_size": FP4_BLOCK, "scale_type": int(ir.DataType.FLOAT8E4M3FN)}
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
