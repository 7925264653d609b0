"""Rules of a target about number types: which an operator multiplies, and which it has a kernel for."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.core.numbers.formats import FLOATS
from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.operators.pair_operators import dequantized_by, quantized_by
from ptq_cli.plan.formats.kernel_formats import kernel_refusal
from ptq_cli.plan.questions.neighbors import Rules, moved_inputs, moved_outputs
from ptq_cli.plan.target.rules import OpRule, Target
from ptq_cli.qdq.proof.two_level_rules import two_level_faults
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import stored_integers


def type_faults(model: ir.Model, target: Target) -> Iterator[str]:
    """Yield operators that multiply floats of few bits by another type, or have no kernel for their type."""
    yield from two_level_faults(model)
    rules = Rules(target)
    for node in model.graph.all_nodes():
        rule = rules.of(node)
        if rule is None or rule.kind not in ("compute", "join", "same"):
            continue
        names = _types(node, rule)
        floats = [name for name in names if name in FLOATS]
        if not floats:
            continue
        if len(names) > 1:
            yield f"{node.op_type} '{node.name}' reads {' and '.join(names)}, and no kernel has two types"
        elif refusal := kernel_refusal(node.op_type, rule, target, floats[0], _weight_shape(node, rule)):
            yield f"{node.op_type} '{node.name}' reads {floats[0]}, but {refusal}"


def _weight_shape(node: ir.Node, rule: OpRule) -> tuple[int, ...]:
    pair = dequantized_by(input_at(node, rule.weight))
    stored = stored_integers(pair) if pair is not None else None
    constant = stored.const_value if stored is not None else None
    return tuple(constant.shape.numpy()) if constant is not None else ()


def _types(node: ir.Node, rule: OpRule) -> list[str]:
    """Return the types behind the pairs of a node, which is quantized if all its inputs are."""
    if rule.kind == "compute":
        indices = [*rule.activations, *([] if rule.weight is None else [rule.weight])]
        values = [value for index in dict.fromkeys(indices) if (value := input_at(node, index)) is not None]
    else:
        values = moved_inputs(node, rule)
        if not any(quantized_by(value) for value in moved_outputs(node, rule)):
            return []
    pairs = [dequantized_by(value) for value in values]
    if rule.kind == "compute" and not all(pairs):
        return []
    return list(dict.fromkeys(grid_of(pair).dtype.name.lower() for pair in pairs if pair is not None))
