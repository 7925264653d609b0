"""Proof: whether each operator of a quantized graph computes in integers, and which rule tells why not.

The planner's reasons are about a float graph; these are about a graph that has its Q/DQ already, whoever
placed them. For a target that ONNX Runtime executes, they include what ONNX Runtime was measured to do.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at, nested_graphs, sole_reader
from ptq_cli.models.pair_operators import (
    MICROSOFT,
    QUANTIZE,
    carries_four_bits,
    dequantized_by,
    is_integer_operator,
    is_pair_node,
    multiplies_four_bits,
)
from ptq_cli.plan.graph_questions import fits_below, has_fixed_shape, is_constant, is_vector
from ptq_cli.plan.left_layers import CONTAINS_LAYERS
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.refusals import (
    QUICKER_SILU,
    attribute_refusal,
    bias_refusal,
    clamp_refusal,
    input_fused_behind,
    integers_refusal,
    is_merged,
    merges_bias_add,
    moved_inputs,
    moved_outputs,
    no_rule,
    output_refusal,
    rule_of,
)
from ptq_cli.plan.target.rules import ONNXRUNTIME, QUICK_GELU, RUNTIME_TITLES, OpRule, Target
from ptq_cli.qdq.proof.carried_pairs import (
    cut_reason,
    float_reader,
    grids_of,
    input_reason,
    output_reason,
    quantizers_behind,
    restored_by,
    result_reason,
    types_reason,
)
from ptq_cli.qdq.read.pair_grids import grid_of, has_scale_of_products
from ptq_cli.qdq.read.stored_constants import (
    DynamicPart,
    dynamic_parts,
    inside_parts,
    is_stored_as_product,
    stored_integers,
    unpacking_nodes,
)
from ptq_cli.runtime.engine import ON_FLOATS, Kernel


def float_reason(node: ir.Node, target: Target) -> str:
    """Return why a target computes a node in float, or an empty string if its rules make it integer."""
    if nested_graphs(node):
        return CONTAINS_LAYERS
    rule = rule_of(node, target)
    if rule is None:
        return integers_refusal(node) or _form_reason(node, target) or no_rule(node, target)
    if reason := attribute_refusal(node, rule):
        return reason
    if rule.kind == "apart" or not rule.integer_kernel:
        return rule.note
    if rule.integer_form:
        return f"there is no integer {node.op_type}; ptq writes one between quantized tensors as Add and Mul"
    checks = {"compute": _compute, "join": _join, "same": _same, "clamp": _clamp, "stored": _stored}
    return next(filter(None, checks[rule.kind](node, rule, target)), "")


def _form_reason(node: ir.Node, target: Target) -> str:
    """Return the reason for a node that is the float form of another operator, or an empty string."""
    if node.op_type == QUICK_GELU and node.domain == MICROSOFT and target.runtime == ONNXRUNTIME:
        return QUICKER_SILU
    spelled = next((name for name, rule in target.op.items() if rule.float_form == node.op_type), "")
    return spelled and f"is {spelled} of floats, written so that it is not merged into a slower kernel"


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
        if value is not None and is_constant(value):
            yield f"its weight '{value.name}' is a float constant"
        elif value is not None and not is_pair_node(value.producer()) and not is_stored_as_product(value):
            yield f"its weight '{value.name}' is computed at run time"
    yield rule.note


def _bias_reason(node: ir.Node, rule: OpRule, target: Target, *, result_is_float: bool) -> str:
    bias = input_at(node, rule.bias)
    pair = _pair_of(bias)
    if bias is None or _is_int32(bias):
        indices = (rule.activations[0], rule.weight)
        source, weight = (restored_by(input_at(node, index), target) for index in indices)
        if bias is None or pair is None or source is None or weight is None:
            return ""
        if has_scale_of_products(pair, source, weight):
            return ""
        return f"its bias '{bias.name}' does not have the scale of its input times that of its weight"
    if pair is not None:
        return f"its bias '{bias.name}' is {grid_of(pair).type_name}, not int32"
    if result_is_float:
        return f"its bias '{bias.name}' is not int32, and its result is not quantized"
    return bias_refusal(bias)


def _merging(node: ir.Node, rule: OpRule, target: Target) -> ir.Node | None:
    """Return the operator that a runtime merges a node into, in float, before it places integer kernels."""
    uses = list(node.outputs[0].uses())
    follower = uses[0].node if len(uses) == 1 else None
    behind = rule_of(follower, target)
    if follower is not None and behind is not None and behind.kind == "clamp":
        return follower if follower.outputs[0].uses() and target.runtime == ONNXRUNTIME else None
    follower = sole_reader(node.outputs[0])
    if follower is None or any(map(_is_int32, follower.inputs)):
        return None  # An int32 vector becomes the bias of an integer Gemm.
    source = node.inputs[0]
    fixed = follower.op_type == "Add" and source is not None and has_fixed_shape(source)
    adds_vector = any(_is_vector(value, node.outputs[0]) for value in follower.inputs)
    is_gemm = follower.op_type in rule.merged_by and fixed and adds_vector
    return follower if is_gemm or is_merged(node, rule) else None


def _pair_of(value: ir.Value | None) -> ir.Node | None:
    """Return the node of a pair that a value comes right out of."""
    producer = value.producer() if value is not None else None
    return producer if is_pair_node(producer) else None


def _is_vector(value: ir.Value | None, product: ir.Value) -> bool:
    pair = _pair_of(value)
    stored = stored_integers(pair) if pair is not None else value
    return stored is not None and is_constant(stored) and is_vector(stored) and fits_below(stored, product)


def _is_int32(value: ir.Value | None) -> bool:
    pair = _pair_of(value)
    return pair is not None and grid_of(pair).dtype == ir.DataType.INT32


def behind_bias(node: ir.Node, rule: OpRule, target: Target) -> ir.Node:
    """Return the Add of a MatMul's bias that its integer kernel includes, or else the node itself."""
    add = sole_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or not rule.bias_add or not merges_bias_add(node, rule, target):
        return node
    others = [value for value in add.inputs if value is not node.outputs[0]]
    if target.bias.format == "int32":
        return add if any(map(_is_int32, others)) else node
    return add if any(_is_vector(value, node.outputs[0]) for value in others) else node


def is_merged_bias(node: ir.Node, target: Target) -> bool:
    """Tell whether a node adds the bias of an integer MatMul whose kernel includes it."""
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
    names = sorted({grid.type_name for grid in grids_of(node, indices, target)})
    yield f"its inputs are {' and '.join(names)}" if len(names) > 1 else ""
    yield output_reason(node, target)


def _same(node: ir.Node, rule: OpRule, target: Target) -> Iterator[str]:
    moved, outputs = moved_inputs(node, rule), moved_outputs(node, rule)
    yield output_refusal(node, len(outputs))
    for value in node.inputs:
        if value is not None and any(value is item for item in moved):
            yield input_reason(value, "input", target)
        elif value is not None and _pair_of(value) is not None:
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


OUT_OF_PLACE = "{} leaves it in float, and no rule of the target explains why"
SIGNED = (
    "its activations are int8: ONNX Runtime converts some of them to uint8 on x86, and has no kernel if an "
    "operator's inputs and result then differ"
)
WITHOUT_PAIRS = "not each of its inputs and its result has a pair, so the HTP computes it in float16"
# Operators on integers whose result is float: what moves it does not move integers.
RETURN_FLOATS = ("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")
_ONCE = "computed once, when the model is loaded"


@dataclass(frozen=True, kw_only=True)
class OperatorProof:
    """Where an operator computes."""

    name: Annotated[str, "The node's name."]
    op: Annotated[str, "Its operator type."]
    placement: Annotated[
        Literal["integer", "float", "part"],
        '"integer", "float", or "part" of another operator, which the reason names.',
    ]
    kernel: Annotated[
        str,
        "The name of the runtime's kernel; empty for a part, and if only the target's rules were checked.",
    ]
    multiply_accumulates: Annotated[int | None, "How much it computes; None if that is not known."]
    reason: Annotated[str, "Why it is float, or what it is part of; empty for integer."]
    quantized: Annotated[bool, "Whether it reads or returns a quantized tensor."]


def prove_operators(
    model: ir.Model, target: Target, work: MultiplyAccumulates, kernels: Mapping[str, Kernel] | None
) -> tuple[OperatorProof, ...]:
    """Return how each operator computes, in graph order; without ``kernels`` by the target's rules alone."""
    parts = dynamic_parts(model)
    inside, unpacking = inside_parts(parts), unpacking_nodes(model)
    proofs = []
    for node in every_node(model.graph):
        name = node.name or ""
        if name in parts:
            proofs.append(_dynamic_proof(parts[name], work, kernels))
        elif not (node in inside or node in unpacking or is_pair_node(node) or carries_four_bits(node)):
            proofs.append(_proof(node, target, work, kernels[name] if kernels is not None else None))
    return tuple(proofs)


def _dynamic_proof(
    part: DynamicPart, work: MultiplyAccumulates, kernels: Mapping[str, Kernel] | None
) -> OperatorProof:
    """Return how a layer is computed that makes integers of its activations: as its product is."""
    product = part.product.name or ""
    kernel = kernels[product] if kernels is not None else None
    is_integer = kernel is None or kernel.placement == "integer"
    return OperatorProof(
        name=part.node.name or "",
        op=part.op,
        placement="integer" if is_integer else "float",
        kernel=kernel.name if kernel is not None else "",
        multiply_accumulates=work.counts[product],
        reason="" if is_integer else OUT_OF_PLACE.format(RUNTIME_TITLES[ONNXRUNTIME]),
        quantized=True,
    )


def _proof(node: ir.Node, target: Target, work: MultiplyAccumulates, kernel: Kernel | None) -> OperatorProof:
    placement, reason = _by_rules(node, target) if kernel is None else _by_kernel(node, target, kernel)
    name = node.name or ""
    # What is computed at loading is not part of a run.
    count = 0 if reason == _ONCE else work.counts[name]
    reads = (value for value in node.inputs if value is not None)
    touched = any(is_pair_node(value.producer()) or is_stored_as_product(value) for value in reads)
    touched = touched or any(is_pair_node(use.node) for output in node.outputs for use in output.uses())
    return OperatorProof(
        name=name,
        op=node.op_type,
        placement=placement,
        kernel=kernel.name if kernel is not None else "",
        multiply_accumulates=count,
        reason=reason,
        quantized=touched,
    )


Placed = tuple[Literal["integer", "float", "part"], str]


def _by_rules(node: ir.Node, target: Target) -> Placed:
    if target.runtime == ONNXRUNTIME and _is_integer_form(node, target):
        return "integer", ""
    # Before the float rules: as an Add of its own it would look as if it were left in float.
    if is_merged_bias(node, target):
        return "part", _before(node)
    if multiplies_four_bits(node):
        return "integer", ""
    if reason := float_reason(node, target):
        return "float", reason
    rule = rule_of(node, target)
    return ("part", _before(node)) if rule is not None and rule.kind == "clamp" else ("integer", "")


def _is_integer_form(node: ir.Node, target: Target) -> bool:
    """Tell whether a node is an operator on integers, or moves integers that such an operator returns."""
    current: ir.Node | None = node
    while current is not None and not is_integer_operator(current.op_type):
        rule, source = rule_of(current, target), current.inputs[0] if current.inputs else None
        if rule is None or rule.kind != "same" or source is None:
            return False
        current = source.producer()
        if current is not None and current.op_type == QUANTIZE:
            return True
    return current is not None and (current is node or current.op_type not in RETURN_FLOATS)


def _by_kernel(node: ir.Node, target: Target, kernel: Kernel) -> Placed:
    if kernel.placement == "integer":
        return "integer", ""
    reason = _blocks_reason(node, target, kernel) or float_reason(node, target)
    if kernel.placement == "gone":
        # The runtime folded it: all that it reads is in the file.
        if all(value is None or _is_stored(value) for value in node.inputs):
            return "part", _ONCE
        rule = rule_of(node, target)
        if rule is None or rule.kind != "compute":
            return "part", _before(node)
        return "float", reason or "merged into another operator, in float"
    if reason or kernel.name == ON_FLOATS:
        return "float", reason or WITHOUT_PAIRS
    is_signed = target.runtime == ONNXRUNTIME and _reads_signed(node, target)
    return "float", SIGNED if is_signed else OUT_OF_PLACE.format(RUNTIME_TITLES[target.runtime])


def _blocks_reason(node: ir.Node, target: Target, kernel: Kernel) -> str:
    described = in_blocks(node, target)
    blocks = target.op[node.op_type].blocks if described else None
    if blocks is None or kernel.name != blocks.kernel:
        return ""
    return f"{described}, which {kernel.name} reads beside float activations"


def in_blocks(node: ir.Node, target: Target) -> str:
    """Describe a layer's weight in blocks, if the target has a kernel for it; or an empty string."""
    rule = rule_of(node, target)
    value = input_at(node, rule.weight) if rule is not None and rule.blocks is not None else None
    dequantize = dequantized_by(value)
    if rule is None or rule.blocks is None or dequantize is None or stored_integers(dequantize) is None:
        return ""
    grid = grid_of(dequantize)
    bits = int(grid.dtype.bitwidth)
    # MatMulNBits has blocks along K, which is axis 0 of a MatMul's weight.
    if grid.block_size not in rule.blocks.sizes or bits not in rule.blocks.bits or grid.axis != 0:
        return ""
    return f"its weight is {bits} bits in blocks of {grid.block_size}"


def _is_stored(value: ir.Value) -> bool:
    if is_stored_as_product(value):
        return True
    dequantize = dequantized_by(value)
    return stored_integers(dequantize) is not None if dequantize is not None else is_constant(value)


def _before(node: ir.Node) -> str:
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        # A pair between the two is merged with them.
        while producer is not None and is_pair_node(producer):
            producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
        if producer is not None:
            return f"part of {producer.op_type} '{producer.name}'"
    return "merged into another operator"


def _reads_signed(node: ir.Node, target: Target) -> bool:
    sources = [restored_by(value, target) for value in node.inputs if value is not None]
    return any(
        source is not None and stored_integers(source) is None and grid_of(source).dtype == ir.DataType.INT8
        for source in sources
    )
