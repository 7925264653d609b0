"""Operators whose activations stay float: their weights are stored as integers, and perhaps computed so."""

from collections.abc import Iterator, Sequence
from math import prod

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.plan.layers.requests import Requests
from ptq_cli.plan.questions.neighbors import Reasons
from ptq_cli.plan.questions.refusals import attribute_refusal, weight_refusal
from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.rules import OpRule

LEAST_SAVED = 1024
"""Bytes. A file with less saved would be no smaller: names and operators take some hundred bytes, too."""
SAVED, ADDED = 3, 5
"""Bytes: what an integer saves, and what the scale and the zero point of a channel add."""
DYNAMIC = "computes in integers, with ranges of its activations that it finds at each run"


def plan_stored(node: ir.Node, rule: OpRule, requests: Requests, in_float: Reasons) -> Iterator[WeightSite]:
    """Yield the weights of an operator to store as integers, and note how it is computed.

    Args:
        node: an operator whose rule is of kind ``"stored"``.
        rule: its rule.
        requests: takes the reason.
        in_float: layers whose weights no integer kernel reads, with the reason.
    """
    name = node.name or ""
    values = [value for index in rule.constants if (value := input_at(node, index)) is not None]
    if refusal := next(filter(None, _refusals(node, rule, values)), ""):
        requests.reasons[name] = refusal
        return
    kernel = rule.kernel if _fits_kernel(node, rule, values) else ""
    if kernel and name not in in_float:
        requests.mark(node, DYNAMIC)
    else:
        requests.reasons[name] = in_float.get(name, rule.note)
    settings = requests.rules.target.weight_rule(node.op_type)
    for index in rule.constants:
        value = input_at(node, index)
        if value is not None:
            yield WeightSite(
                tensor=value.name or "",
                node=name,
                input_index=index,
                format=settings.integers,
                axis=rule.weight_axis if settings.per_axis else None,
                as_pair=settings.stored == "pairs",
                as_product=settings.stored == "products",
                kernel=kernel,
                block_axis=-1,  # it is [directions, channels, inputs]
            )


def _refusals(node: ir.Node, rule: OpRule, values: Sequence[ir.Value]) -> Iterator[str]:
    yield attribute_refusal(node, rule)
    for value in values:
        yield weight_refusal(value, may_be_computed=False)
    shapes = [_shape(value) for value in values]
    saved = sum(SAVED * prod(shape) - ADDED * shape[rule.weight_axis] for shape in shapes)
    if saved < LEAST_SAVED:
        yield "its weights are too small for integers to make the file smaller"


def _fits_kernel(node: ir.Node, rule: OpRule, values: Sequence[ir.Value]) -> bool:
    """Return whether the target's operator on integers can compute a node, and is faster."""
    if not rule.kernel or node.attributes.get_int("layout", 0) != 0:
        return False
    return sum(prod(_shape(value)[1:]) for value in values) >= rule.kernel_from


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(value.const_value.shape.numpy()) if value.const_value is not None else ()
