"""Layers whose activations become integers at each run: which can, and why the others cannot."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at, rank_of
from ptq_cli.plan.layers.requests import MASKED
from ptq_cli.plan.questions.already_quantized import dequantized_refusal, requantized_refusal
from ptq_cli.plan.questions.angles import angle_refusal
from ptq_cli.plan.questions.graph_questions import is_constant
from ptq_cli.plan.questions.masks import carries_mask
from ptq_cli.plan.questions.refusals import attribute_refusal, bias_refusal, float_refusal, weight_refusal
from ptq_cli.plan.target.rules import OpRule, Target

ROW, TENSOR = "row", "tensor"
"""What shares a scale: the values that a result is summed from, or all values that are run together."""
COMPUTED = (
    "both of its inputs are computed while the model runs: making integers of both at each run saves little "
    "time, and costs accuracy"
)
MATRIX = 2


def dynamic_operators(target: Target) -> frozenset[str]:
    """Return the operators that a target computes with ranges that are found at each run.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> sorted(dynamic_operators(load_target("ort-cpu")))
        ['Conv', 'Gemm', 'MatMul']
    """
    return frozenset(name for name, rule in target.op.items() if rule.dynamic)


def slow_layers(model: ir.Model, target: Target) -> dict[str, str]:
    """Return the layers that are slower with ranges found at each run than in float, with the reason.

    Args:
        model: the float model.
        target: whose notes say which operators these are.
    """
    notes = {name: rule.dynamic_note for name, rule in target.op.items() if rule.dynamic_note}
    return {node.name or "": notes[node.op_type] for node in model.graph.all_nodes() if node.op_type in notes}


def dynamic_refusal(node: ir.Node, rule: OpRule, target: str) -> str:
    """Return why the activations of a layer cannot become integers at each run, or an empty string.

    Args:
        node: a layer whose rule is of kind ``"compute"``.
        rule: its rule.
        target: the target's name.
    """
    return next(filter(None, _refusals(node, rule, target)), "")


def _refusals(node: ir.Node, rule: OpRule, target: str) -> Iterator[str]:
    if not rule.dynamic:
        yield f"target {target} has no integer {node.op_type} that finds ranges of activations at each run"
    yield attribute_refusal(node, rule)
    yield angle_refusal(node)
    yield requantized_refusal(node)
    source, weight = input_at(node, rule.activations[0]), input_at(node, rule.weight)
    if source is not None:
        yield dequantized_refusal(source) or float_refusal(source)
        yield MASKED if carries_mask(source) else ""
    if weight is None or not is_constant(weight):
        yield COMPUTED
        return
    yield weight_refusal(weight, may_be_computed=False)
    if (rank_of(weight) or 0) < MATRIX:
        yield f"its weight '{weight.name}' is not a matrix"
    if node.op_type == "Conv" and (bias := input_at(node, rule.bias)) is not None:
        yield bias_refusal(bias)
    if node.attributes.get_int("transA", 0) != 0:
        yield "transA is 1: its rows would have to be turned before they become integers"
