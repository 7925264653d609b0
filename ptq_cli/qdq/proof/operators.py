"""Proof: whether each operator of a quantized graph computes in integers, and if not, why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.pair_operators import (
    QUANTIZE,
    carries_four_bits,
    dequantized_by,
    is_integer_operator,
    is_pair_node,
    multiplies_four_bits,
)
from ptq_cli.plan.graph_questions import is_constant
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.neighbors import rule_of
from ptq_cli.plan.target.rules import ONNXRUNTIME, RUNTIME_TITLES, Target
from ptq_cli.qdq.proof.carried_pairs import restored_by
from ptq_cli.qdq.proof.float_reasons import float_reason, is_merged_bias
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import (
    DynamicPart,
    dynamic_parts,
    inside_parts,
    is_stored_as_product,
    stored_integers,
    unpacking_nodes,
)
from ptq_cli.runtime.engine import ON_FLOATS, Kernel

OUT_OF_PLACE = "{} leaves it in float, and no rule of the target explains why"
SIGNED = (
    "its activations are int8: ONNX Runtime converts some of them to uint8 on x86, and has no kernel if an "
    "operator's inputs and result then differ"
)
WITHOUT_PAIRS = "not each of its inputs and its result has a pair, so the HTP computes it in float16"
# Operators on integers whose result is float: what moves it does not move integers.
RETURN_FLOATS = ("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")
ONCE = "computed once, when the model is loaded"


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
    count = 0 if reason == ONCE else work.counts[name]
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
            return "part", ONCE
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
