"""One algorithm over a target's rules: from the operators that get faster, outwards to the tensors they need.

Compute operators (Conv, Gemm, MatMul) request quantized inputs. A request travels up: through operators that
only move values (both sides share parameters), and into operators that are integer when all their sides are
(Add, Concat). An Add that no compute operator reads stays float: in integers it would lose accuracy and not
be faster. So every quantized tensor has a reader that needs it.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.graph_reading import every_node, every_value, nested_graphs
from ptq_cli.plan.attention_masks import adds_mask
from ptq_cli.plan.embedding_tables import tell_ties
from ptq_cli.plan.graph_questions import (
    ends_signal,
    has_axes_to_join,
    is_constant,
    parameter_size,
    silu_input,
)
from ptq_cli.plan.left_layers import CONTAINS_LAYERS, nested_refusals, quantized_already, quantizing_nodes
from ptq_cli.plan.refusals import (
    Reasons,
    Rules,
    attribute_refusal,
    clamp_refusal,
    integers_refusal,
    moved_from,
    no_rule,
)
from ptq_cli.plan.requests import Requests
from ptq_cli.plan.sites import ActivationSite, LayerPlan, Plan
from ptq_cli.plan.target.rules import IMAGE_AXIS, JOINED_AXES, QUICK_GELU, ActivationRule, Target
from ptq_cli.plan.weighted_operators import Computing, plan_stored, with_pairs

# Begins the reason of a layer whose weights alone may be quantized.
ACTIVATIONS_IN_FLOAT = "its activations stay in float, as the recipe asks"
# A reason may also be that a value is of integers, which no other export changes.
OTHER_FLOATS = ("float16", "bfloat16", "double")


def _layer_plan(node: ir.Node, requests: Requests) -> LayerPlan:
    """Return the plan of a node, with a reason if it is not computed in integers."""
    name, rule = node.name or "", requests.rules.target.op.get(node.op_type)
    dynamic = name in requests.dynamic
    quantized = dynamic or name in requests.integer
    reason = requests.reasons.get(name, "")
    if quantized:
        form = rule.integer_form if rule is not None else ""
    else:
        reason = requests.rules.excluded.get(name, "") or reason or _float_reason(node, requests)
        form = _float_form(node, requests)
    return LayerPlan(
        name=name,
        op=node.op_type,
        quantized=quantized,
        reason=reason,
        parameters=sum(parameter_size(value) for value in node.inputs if value is not None),
        written_as=form,
        dynamic=dynamic,
    )


def _float_form(node: ir.Node, requests: Requests) -> str:
    target, x = requests.rules.target, silu_input(node)
    # Only between integers: elsewhere ONNX Runtime makes a QuickGelu by itself.
    if target.runtime_operators and x is not None and (x.name or "") in requests.asked:
        return QUICK_GELU
    rule = target.op.get(node.op_type)
    if rule is not None and rule.join_axes and has_axes_to_join(node):
        return JOINED_AXES
    if rule is not None and rule.image_axis and ends_signal(node):
        return IMAGE_AXIS
    if rule is None or not rule.float_form or any(is_constant(value) for value in node.inputs if value):
        return ""
    readers = node.outputs[0].uses()
    merged = any(use.idx == 0 and use.node.op_type in rule.float_form_before for use in readers)
    return rule.float_form if merged else ""


def _float_reason(node: ir.Node, requests: Requests) -> str:
    if adds_mask(node):
        return "attention mask: with its huge constant in the range, all scores would round to one value"
    if nested_graphs(node):
        return CONTAINS_LAYERS
    if reason := integers_refusal(node):
        return reason
    rule = requests.rules.of(node)
    if rule is None:
        return no_rule(node, requests.rules.target)
    if reason := attribute_refusal(node, rule):
        return reason
    by_kind = {"clamp": clamp_refusal(node) or "its result is not quantized", "apart": rule.note}
    return by_kind.get(
        rule.kind, "no integer operator reads it: in integers it would lose accuracy and not be faster"
    )


@dataclass(frozen=True, kw_only=True)
class LayerChoices:
    """Decisions about single layers, by name with the reason.

    Attributes:
        in_float: layers without an integer kernel for their weight.
        looked_up: those of ``in_float`` whose weight a runtime sees as floats.
        products: those whose weight is integers that become floats once, when the model is opened.
        excluded: layers that the user keeps in float.
        unjoined: joins that stay in float because one scale does not fit their result. What only moves that
            result is not quantized either.
        dynamic: layers whose activations become integers at each run, with what shares a scale of them.
    """

    in_float: Reasons = field(default_factory=dict)
    looked_up: Container[str] = ()
    products: Container[str] = ()
    excluded: Reasons = field(default_factory=dict)
    unjoined: Reasons = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)


def make_plan(
    model: ir.Model,
    target: Target,
    choices: LayerChoices = LayerChoices(),
    *,
    may_be_empty: bool = False,
    alone: Plan | None = None,
) -> Plan:
    """Return the plan of a float model for a target. Parts that are already quantized stay as they are.

    If nothing can be quantized, a plan that ``may_be_empty`` has only the reasons. ``alone`` is what the
    target would quantize of this model without choices, which then is not planned again.

    Requires: a prepared model (constants are initializers, names are unique, shapes are inferred). Each
    tensor that is quantized despite the choices is also quantized without them, so that a calibration for
    the target has measured it.

    Raises:
        NothingToQuantizeError: no operator can be quantized, and the message has the first reasons; or the
            model is already quantized.
    """
    quantizing = quantizing_nodes(model.graph)
    unmeasured = nested_refusals(model.graph, target)
    # Planned once without the recipe: these are the tensors that a calibration has measured.
    if alone is None:
        plan, trapped = _untrapped(model.graph, Rules(target, unmeasured), {}, LayerChoices())
        alone = replace(plan, trapped=trapped)
    plan = alone
    if choices.in_float or choices.excluded or choices.unjoined or choices.dynamic:
        # No new sites may appear: the calibration has not measured other tensors.
        refused = {**alone.trapped, **_unjoined_results(model.graph, choices.unjoined, target)}
        rules = Rules(target, {**choices.excluded, **choices.unjoined, **unmeasured})
        plan, _ = _untrapped(model.graph, rules, refused, choices)
    is_empty = not plan.weights and not plan.activations
    if is_empty and quantizing:
        raise quantized_already(quantizing[0])
    if is_empty and not may_be_empty:
        raise _nothing(plan, target, is_dynamic=bool(choices.dynamic))
    return plan.with_weights(with_pairs(model.graph, plan, target, {site: site for site in plan.weights}), {})


def _nothing(plan: Plan, target: Target, *, is_dynamic: bool) -> NothingToQuantizeError:
    # Twenty layers name every reason of usual models, and keep the message to a few lines.
    reasons = "; ".join(dict.fromkeys(layer.reason for layer in plan.layers[:20])) or "it has no operators"
    other_floats = any(f"is {name}, not float" in reasons for name in OTHER_FLOATS)
    in_float32 = "only float32 is quantized: export the model in float32; " if other_floats else ""
    if is_dynamic and not in_float32:
        known = [name for name, rule in target.op.items() if rule.dynamic and not rule.dynamic_note]
        return NothingToQuantizeError(
            f"no layer of this model supports ranges found at each run: {reasons}",
            hint=f"dynamic is for {', '.join(sorted(known))}; pass --set activations.mode=static and --data"
            if known
            else "choose the target ort-cpu, or pass --set activations.mode=static and --data",
        )
    return NothingToQuantizeError(
        f"target '{target.name}' cannot quantize anything in this model: {reasons}",
        hint=f"{in_float32}run `ptq inspect` to see each layer's reason",
    )


def _unjoined_results(graph: ir.Graph, unjoined: Reasons, target: Target) -> dict[str, str]:
    return {
        value.name or "": f"reads {node.op_type} '{node.name}', which stays float: {reason}"
        for node in every_node(graph)
        if (reason := unjoined.get(node.name or ""))
        for value in moved_from(node.outputs[0], target)
    }


def _untrapped(
    graph: ir.Graph, rules: Rules, refused: Reasons, choices: LayerChoices
) -> tuple[Plan, Reasons]:
    while True:
        requests = Requests(rules, refused)
        computing = Computing(
            requests=requests, in_float=choices.in_float, dynamic=choices.dynamic, products=choices.products
        )
        for node, rule in rules.ruled(graph, "compute", "stored"):
            if rule.kind == "compute":
                computing.plan(node, rule)
            else:
                computing.weights += plan_stored(node, rule, requests, choices.in_float)
        requests.ask_captured(graph)
        stored = {site.node for site in computing.weights if site.node not in choices.looked_up}
        trapped = requests.trapped(graph, stored)
        if not trapped:
            return _plan(graph, requests, computing), refused
        refused = {**refused, **trapped}


def _plan(graph: ir.Graph, requests: Requests, computing: Computing) -> Plan:
    values = {value.name or "": value for value in every_value(graph) if value.name in requests.asked}
    groups, target = requests.ties.groups(values), requests.rules.target
    # By source, of the first operator in the graph whose rule gives one: the format of the result, and the
    # grid that its kernel has built in.
    formats: dict[str, ActivationRule] = {}
    fixed: dict[str, Mapping[str, Sequence[float]]] = {}
    for name, value in values.items():
        rule = requests.rules.of(value.producer())
        if rule is not None and rule.result is not None:
            formats.setdefault(groups.sources[name], rule.result)
        if rule is not None and rule.fixed:
            fixed.setdefault(groups.sources[name], rule.fixed)
    sites = {}
    for name in values:
        source = groups.sources[name]
        rule_of_format = formats.get(source, target.activation)
        sites[name] = ActivationSite(
            tensor=name,
            source=source,
            format=rule_of_format.integers,
            symmetric=rule_of_format.symmetric,
            fixed=fixed.get(source, {}),
        )
    layers = (_layer_plan(node, requests) for node in every_node(graph))
    return Plan(
        target=target.name,
        activations=sites,
        weights=tuple(computing.weights),
        biases=tuple(computing.biases),
        layers=tell_ties(graph, layers, computing.weights),
        unions=groups.unions,
    )
