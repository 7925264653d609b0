"""One algorithm over a target's rules: from the operators that get faster, outwards to the tensors they need.

Compute operators (Conv, Gemm, MatMul) request quantized inputs. A request travels up: through operators that
only move values (both sides share parameters), and into operators that are integer when all their sides are
(Add, Concat). An Add that no compute operator reads stays float: in integers it would lose accuracy and not
be faster. So every quantized tensor has a reader that needs it.
"""

from collections.abc import Container, Mapping
from types import MappingProxyType

import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.graph.graph_reading import every_value
from ptq_cli.plan.layers.computing import Computing
from ptq_cli.plan.layers.requests import Requests
from ptq_cli.plan.layers.storing import plan_stored
from ptq_cli.plan.layers.tied_tables import tell_ties
from ptq_cli.plan.layers.ties import Groups
from ptq_cli.plan.questions.already_quantized import quantized_already, quantizing_nodes
from ptq_cli.plan.questions.neighbors import Reasons, Rules, moved_from
from ptq_cli.plan.questions.nested_layers import nested_refusals
from ptq_cli.plan.questions.pair_orders import with_pairs
from ptq_cli.plan.reasons import layer_plan
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.plan.target.rules import ActivationRule, Target


def make_plan(
    model: ir.Model,
    target: Target,
    in_float: Reasons | None = None,
    excluded: Reasons | None = None,
    looked_up: Container[str] = (),
    *,
    unjoined: Reasons | None = None,
    dynamic: Mapping[str, str] = MappingProxyType({}),
    may_be_empty: bool = False,
) -> Plan:
    """Return what to quantize in ``model`` for ``target``. Parts that are already quantized stay as they are.

    Requires: a prepared model (constants are initializers, names are unique, shapes are inferred). Each
    tensor that is quantized despite ``in_float`` and ``excluded`` is also quantized without them, so that a
    calibration for the target has measured it.

    Args:
        model: the float model.
        target: its rules.
        in_float: layers without an integer kernel for their weight, with the reason.
        excluded: layers that the user keeps in float, with the reason.
        looked_up: the layers of ``in_float`` whose weight a runtime sees as floats.
        unjoined: joins that stay in float because one scale does not fit their result, with the reason. What
            only moves that result is not quantized either.
        dynamic: layers whose activations become integers at each run, with what shares a scale of them.
        may_be_empty: if nothing can be quantized, return a plan with only the reasons.

    Raises:
        NothingToQuantizeError: no operator can be quantized, and the message has the first reasons; or the
            model is already quantized.
    """
    quantizing = quantizing_nodes(model.graph)
    unmeasured = nested_refusals(model.graph, target)
    plan, refused = _untrapped(model.graph, Rules(target, unmeasured), {}, {}, ())
    if in_float or excluded or unjoined or dynamic:
        # No new sites may appear: the calibration has not measured other tensors.
        refused = {**refused, **_unjoined_results(model.graph, unjoined or {}, target)}
        rules = Rules(target, {**(excluded or {}), **(unjoined or {}), **unmeasured})
        plan, _ = _untrapped(model.graph, rules, refused, in_float or {}, looked_up, dynamic)
    if quantizing and not plan.weights and not plan.activations:
        raise quantized_already(quantizing[0])
    if not plan.weights and not plan.activations and not may_be_empty:
        raise _nothing(plan, target, is_dynamic=bool(dynamic))
    return plan.with_weights(with_pairs(model.graph, plan, target, {site: site for site in plan.weights}), {})


def _nothing(plan: Plan, target: Target, *, is_dynamic: bool) -> NothingToQuantizeError:
    reasons = "; ".join(dict.fromkeys(layer.reason for layer in plan.layers[:20])) or "it has no operators"
    in_float32 = "only float32 is quantized: export the model in float32; " if "not float" in reasons else ""
    if is_dynamic and not in_float32:
        known = [name for name, rule in target.op.items() if rule.dynamic and not rule.dynamic_note]
        return NothingToQuantizeError(
            f"no layer of this model finds the ranges of its activations at each run: {reasons}",
            hint=f"dynamic is for {' and '.join(sorted(known))}; pass --activation-mode static and --data"
            if known
            else "choose the target ort-cpu, or pass --activation-mode static and --data",
        )
    return NothingToQuantizeError(
        f"target '{target.name}' cannot quantize anything in this model: {reasons}",
        hint=f"{in_float32}run `ptq inspect` to see each layer's reason",
    )


def _unjoined_results(graph: ir.Graph, unjoined: Reasons, target: Target) -> dict[str, str]:
    return {
        value.name or "": f"reads {node.op_type} '{node.name}', which stays float: {reason}"
        for node in graph.all_nodes()
        if (reason := unjoined.get(node.name or ""))
        for value in moved_from(node.outputs[0], target)
    }


def _untrapped(
    graph: ir.Graph,
    rules: Rules,
    refused: Reasons,
    in_float: Reasons,
    looked_up: Container[str],
    dynamic: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Plan, Reasons]:
    while True:
        requests = Requests(rules, refused)
        computing = Computing(requests=requests, in_float=in_float, dynamic=dynamic)
        for node in graph.all_nodes():
            rule = rules.of(node)
            if rule is not None and rule.kind == "compute":
                computing.plan(node, rule)
            elif rule is not None and rule.kind == "stored":
                computing.weights += plan_stored(node, rule, requests, in_float)
        requests.ask_captured(graph)
        stored = {site.node for site in computing.weights if site.node not in looked_up}
        trapped = requests.trapped(graph, stored)
        if not trapped:
            return _plan(graph, requests, computing), refused
        refused = {**refused, **trapped}


def _plan(graph: ir.Graph, requests: Requests, computing: Computing) -> Plan:
    values = {value.name or "": value for value in every_value(graph) if value.name in requests.asked}
    groups = requests.ties.groups(values)
    formats = _formats(values, groups, requests.rules)
    sites = {}
    for name in values:
        source = groups.sources[name]
        sites[name] = ActivationSite(name, source, formats[source].integers, formats[source].symmetric)
    layers = tell_ties(graph, (layer_plan(node, requests) for node in graph.all_nodes()), computing.weights)
    target = requests.rules.target.name
    return Plan(
        target=target,
        activations=sites,
        weights=tuple(computing.weights),
        biases=tuple(computing.biases),
        layers=layers,
        unions=groups.unions,
    )


def _formats(values: Mapping[str, ir.Value], groups: Groups, rules: Rules) -> dict[str, ActivationRule]:
    """Return the format of each source: the first that a rule gives an operator's result, in graph order."""
    found: dict[str, ActivationRule] = {}
    for name, value in values.items():
        rule = rules.of(value.producer())
        if rule is not None and rule.result is not None:
            found.setdefault(groups.sources[name], rule.result)
    return {source: found.get(source, rules.target.activation) for source in groups.sources.values()}
