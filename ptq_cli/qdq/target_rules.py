"""Proof: a quantized graph keeps what its target's table promises, whatever made the graph."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.plan.neighbours import Rules, clamp_behind, input_fused_behind, moved_inputs, moved_outputs
from ptq_cli.plan.refusals import attribute_refusal, output_refusal
from ptq_cli.plan.rules import ActivationRule, OpRule, Target
from ptq_cli.plan.tensors import input_at, is_constant, weight_axis

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
Faults = Iterator[str]


def target_faults(model: ir.Model, target: Target) -> Faults:
    """Yield what a quantized graph has that its target's table does not allow; nothing if it keeps it.

    Checked, from the graph alone: the opset; formats and zero points of activations and weights; the axis of
    a weight's scales, and whether it is stored as integers or as a pair; that biases are int32 with the scale
    of the products, or float; that an operator which must have a quantized output has one, and that no other
    has one that nobody needs; equal parameters on both sides of what moves values, and on all sides of what
    is tied; that a residual's sum is left to the operator that it is merged into.

    Requires: a graph whose structure is sound; see ``structure.structure_faults``.
    """
    opset = model.opset_imports.get("", 0)
    if opset < target.opset:
        yield f"the opset is {opset}, target '{target.name}' needs {target.opset}"
    rules = Rules(target)
    for node in model.graph:
        if target.bias.format == "float" and _dequantizes_int32(node):
            yield f"'{node.name}' dequantizes int32, target '{target.name}' promises float biases"
        if node.op_type == QUANTIZE and node.inputs[0] is not None and not is_constant(node.inputs[0]):
            yield from _activation_faults(node, rules)
        rule = rules.of(node)
        if rule is None:
            continue
        if rule.kind == "compute" and is_quantized(node, rule):
            yield from _weight_faults(node, rule, target)
            yield from _bias_faults(node, rule, target)
            yield from _output_faults(node, rule, rules)
        elif rule.kind in ("same", "join"):
            yield from _shared_faults(node, rule, rules)


def is_quantized(node: ir.Node, rule: OpRule) -> bool:
    """Tell whether a compute operator reads quantized activations, and a quantized weight if it has one."""
    indices = {*rule.activations, *([] if rule.weight is None else [rule.weight])}
    values = [value for index in indices if (value := input_at(node, index)) is not None]
    return bool(values) and all(_pair_before(value) is not None for value in values)


def _activation_faults(node: ir.Node, rules: Rules) -> Faults:
    source = node.inputs[0]
    assert source is not None  # noqa: S101 - the caller looked
    zero, allowed = _array(node.inputs[2]), list(_allowed(rules))
    known = {name for rule in allowed for name in (rule.format, *rule.formats, *rule.simulated)}
    name = str(zero.dtype)
    if name not in known:
        yield f"'{source.name}' is {name}, target '{rules.target.name}' has {', '.join(sorted(known))}"
    middle = 0 if np.issubdtype(zero.dtype, np.signedinteger) else 1 << (8 * zero.dtype.itemsize - 1)
    if all(rule.symmetric for rule in allowed) and np.any(zero != middle):
        yield f"'{source.name}' has zero point {zero}, target '{rules.target.name}' promises {middle}"


def _allowed(rules: Rules) -> Iterator[ActivationRule]:
    yield rules.target.activation
    # Ties carry a result's format to other tensors, so that any of the table's may be met anywhere.
    yield from (rule.result for rule in rules.target.op.values() if rule.result is not None)


def _weight_faults(node: ir.Node, rule: OpRule, target: Target) -> Faults:
    value = input_at(node, rule.weight)
    dequantize = _pair_before(value) if value is not None else None
    if dequantize is None or dequantize.inputs[0] is None or _computed_pair(dequantize):
        return
    settings = target.weight_rule(node.op_type)
    as_pair = dequantize.inputs[0].producer() is not None and _is_pair_of_constant(dequantize)
    if as_pair != (settings.stored == "pairs"):
        wanted = "a pair on a float constant" if settings.stored == "pairs" else "integers"
        yield f"the weight of '{node.name}' is not stored as {wanted}"
    if len(dequantize.inputs) > 2 and np.any(_array(dequantize.inputs[2]) != 0):
        yield f"the weight of '{node.name}' has a zero point that is not 0"
    scale = _array(dequantize.inputs[1])
    shaped = dequantize.outputs[0] if dequantize.outputs[0].shape is not None else dequantize.inputs[0]
    wanted_axis = weight_axis(node, rule, shaped)
    if scale.ndim and dequantize.attributes.get_int("axis", 1) != wanted_axis:
        axis = dequantize.attributes.get_int("axis", 1)
        yield f"the weight of '{node.name}' has its scales along axis {axis}, and not {wanted_axis}"


def _bias_faults(node: ir.Node, rule: OpRule, target: Target) -> Faults:
    bias = input_at(node, rule.bias)
    if bias is None:
        return
    dequantize = _pair_before(bias)
    if target.bias.format == "float":
        return
    if dequantize is None:
        yield f"the bias of '{node.name}' is float, target '{target.name}' promises int32"
        return
    activation, weight = (input_at(node, index) for index in (rule.activations[0], rule.weight))
    scales = [_array(pair.inputs[1]) for value in (activation, weight) if (pair := _pair_before(value))]
    product = np.asarray(np.prod(np.broadcast_arrays(*scales), axis=0), np.float32)
    if not np.array_equal(product, _array(dequantize.inputs[1])):
        yield f"the bias of '{node.name}' has another scale than its products"


def _output_faults(node: ir.Node, rule: OpRule, rules: Rules) -> Faults:
    value = node.outputs[0]
    if rule.output == "always":
        behind = clamp_behind(node, rules)
        if not _pairs_behind(value) and not (behind is not None and _pairs_behind(behind.outputs[0])):
            yield f"the output of '{node.name}' is not quantized, target '{rules.target.name}' wants it so"
        return
    for quantize in _pairs_behind(value):
        readers = [use for pair, _ in quantize.outputs[0].uses() for use, _ in pair.outputs[0].uses()]
        needed = (rules.of(reader) is not None or reader.op_type in rule.merged_by for reader in readers)
        if not any(needed):
            yield f"the output of '{node.name}' is quantized, and nobody needs it"
        if any(_takes_as_it_is(reader, node, rules) for reader in readers):
            yield f"the output of '{node.name}' is quantized before the Add that it is merged with"


def _takes_as_it_is(reader: ir.Node, node: ir.Node, rules: Rules) -> bool:
    """Tell whether a join could have taken a result in float: it alone reads it, and takes no other so."""
    rule = rules.of(reader)
    if rule is None or node.op_type not in rule.fused_behind or len(node.outputs[0].uses()) != 1:
        return False
    (quantize,) = _pairs_behind(node.outputs[0])
    readers = {use for pair, _ in quantize.outputs[0].uses() for use, _ in pair.outputs[0].uses()}
    return readers == {reader} and input_fused_behind(reader, rule) is None


def _shared_faults(node: ir.Node, rule: OpRule, rules: Rules) -> Faults:
    outputs = moved_outputs(node, rule)
    if rule.kind == "join" and not rule.ties:
        return
    if rule.kind == "same" and (attribute_refusal(node, rule) or output_refusal(node, len(outputs))):
        return  # It is float, between pairs of its own.
    clamp = clamp_behind(node, rules) if rule.kind == "join" else None
    behind = [*outputs, *(clamp.outputs[:1] if clamp is not None else [])]
    pairs = [quantize for value in behind for quantize in _pairs_behind(value)]
    before = [_pair_before(value) for value in moved_inputs(node, rule)]
    if not pairs or None in before:
        return
    parameters = {_key(pair) for pair in (*pairs, *before) if pair is not None}
    if len(parameters) > 1:
        yield f"the edges of {node.op_type} '{node.name}' have {len(parameters)} scales, and must share one"


def _key(pair: ir.Node) -> tuple[bytes, bytes]:
    return _array(pair.inputs[1]).tobytes(), _array(pair.inputs[2]).tobytes()


def _pair_before(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that a value comes out of."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == DEQUANTIZE else None


def _pairs_behind(value: ir.Value) -> list[ir.Node]:
    return [node for node, _ in value.uses() if node.op_type == QUANTIZE]


def _is_pair_of_constant(dequantize: ir.Node) -> bool:
    producer = dequantize.inputs[0].producer() if dequantize.inputs[0] is not None else None
    if producer is None or producer.op_type != QUANTIZE:
        return False
    return producer.inputs[0] is not None and is_constant(producer.inputs[0])


def _computed_pair(dequantize: ir.Node) -> bool:
    """Tell whether a pair quantizes what is computed at run time: both sides of a MatMul may be."""
    producer = dequantize.inputs[0].producer() if dequantize.inputs[0] is not None else None
    return producer is not None and producer.op_type == QUANTIZE and not _is_pair_of_constant(dequantize)


def _dequantizes_int32(node: ir.Node) -> bool:
    source = node.inputs[0] if node.op_type == DEQUANTIZE else None
    return source is not None and source.dtype == ir.DataType.INT32


def _array(value: ir.Value | None) -> Array:
    if value is None or value.const_value is None:
        raise ValueError("a scale or zero point is no constant")
    return np.asarray(value.const_value.numpy())
