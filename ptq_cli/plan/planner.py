"""One algorithm over a target's rules: from the operators that pay, outwards to the tensors they need.

Compute operators (Conv, Gemm, MatMul) ask for quantized inputs. A request travels up: through operators
that only move values (both sides share parameters), and into operators that are integer when all their
sides are (Add, Concat). An Add that no compute operator reads stays float: an integer Add would cost
accuracy and save nothing. So every quantized tensor has a reader that needs it.
"""

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError, NothingToQuantizeError
from ptq_cli.plan.masks import adds_mask, carries_mask
from ptq_cli.plan.neighbours import clamp_behind, is_clamped, is_merged, moved_from, moved_to, rule_of
from ptq_cli.plan.quantized import (
    dequantized_refusal,
    quantized_already,
    quantizing_nodes,
    requantized_refusal,
)
from ptq_cli.plan.refusals import (
    attribute_refusal,
    bias_refusal,
    clamp_refusal,
    float_refusal,
    integers_refusal,
    no_rule,
    output_refusal,
    table_refusal,
    weight_refusal,
)
from ptq_cli.plan.sites import ActivationSite, BiasSite, LayerPlan, Plan, WeightSite
from ptq_cli.plan.target import OpRule, Target
from ptq_cli.plan.tensors import (
    bias_add_behind,
    constant_size,
    has_fixed_shape,
    input_at,
    is_constant,
    rank,
    weight_axis,
)

Reasons = Mapping[str, str]  # by the name of a layer or a tensor
NESTED = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def make_plan(model: ir.Model, target: Target, in_float: Reasons | None = None) -> Plan:
    """Return what to quantize in ``model`` for ``target``. What is quantized already stays as it is.

    Requires: a prepared model (constants are initializers, names are unique, shapes inferred).
    ``in_float`` names layers of whose weight there is no integer kernel, with the reason; each tensor that is
    then quantized is also quantized without it.

    Raises:
        InvalidOnnxError: the model's opset is older than the target's Q/DQ form needs.
        NothingToQuantizeError: no operator can be quantized, and the message has the first reasons; or the
            model is quantized already.
    """
    quantizing = quantizing_nodes(model.graph)
    opset = model.opset_imports.get("", 0)
    if opset < target.opset:
        raise InvalidOnnxError(
            f"the model has opset {opset}, target '{target.name}' needs {target.opset} or later",
            hint="convert it with onnx.version_converter, or export it again with a newer opset",
        )
    plan, refused = _untrapped(model.graph, target, {}, {})
    if in_float:  # What must not be a site stays none: a calibration has measured no others.
        plan, _ = _untrapped(model.graph, target, refused, in_float)
    if quantizing and not plan.weights and not plan.activations:
        raise quantized_already(quantizing[0])
    if not plan.weights and not plan.activations:
        reasons = (
            "; ".join(dict.fromkeys(layer.reason for layer in plan.layers[:20])) or "it has no operators"
        )
        in_float32 = "float32 alone is quantized: export the model in it; " if "not float" in reasons else ""
        raise NothingToQuantizeError(
            f"target '{target.name}' can quantize nothing in this model: {reasons}",
            hint=f"{in_float32}ptq inspect shows each layer's reason",
        )
    return plan


def _untrapped(graph: ir.Graph, target: Target, refused: Reasons, in_float: Reasons) -> tuple[Plan, Reasons]:
    while True:
        planner = _Planner(graph, target, refused, in_float)
        plan, trapped = planner.plan(), planner.trapped()
        if not trapped:
            return plan, refused
        refused = {**refused, **trapped}


class _Planner:
    def __init__(self, graph: ir.Graph, target: Target, refused: Reasons, in_float: Reasons) -> None:
        self._graph = graph
        self._target = target
        self._refused = refused
        self._in_float = in_float
        self._sources: dict[str, str] = {}
        self._weights: list[WeightSite] = []
        self._biases: list[BiasSite] = []
        self._reasons: dict[str, str] = {}
        self._integer: set[str] = set()
        self._bias_adds: set[str] = set()

    def plan(self) -> Plan:
        for node in self._graph:
            rule = rule_of(node, self._target)
            if rule is not None and rule.kind == "compute":
                self._plan_compute(node, rule)
        format_, symmetric = self._target.activation_format, self._target.activation.symmetric
        order = [value.name or "" for value in self._graph.inputs]
        order += [value.name or "" for node in self._graph for value in node.outputs]
        sites = {
            name: ActivationSite(name, self._sources[name], format_, symmetric)
            for name in order
            if name in self._sources
        }
        layers = tuple(self._layer(node) for node in self._graph)
        return Plan(self._target.name, sites, tuple(self._weights), tuple(self._biases), layers)

    def trapped(self) -> dict[str, str]:
        """Return the sites that must not be, with the reason: behind an operator that must stay apart."""
        found = {}
        for node in self._graph:
            rule = rule_of(node, self._target)
            if rule is None or rule.kind != "apart" or node.inputs[0] is None:
                continue
            if any(self._is_restored(value) for value in moved_to(node.inputs[0], self._target)):
                reason = f"reads {node.op_type} '{node.name}', which must not be integer: {rule.note}"
                names = [value.name or "" for value in moved_from(node.outputs[0], self._target)]
                found.update({name: reason for name in names if name in self._sources})
        return found

    def _is_restored(self, value: ir.Value) -> bool:
        # Of a float operator's result the readers read the float value, quantized or not.
        producer = value.producer()
        return value.name in self._sources and producer is not None and (producer.name or "") in self._integer

    # Compute operators ask.

    def _plan_compute(self, node: ir.Node, rule: OpRule) -> None:
        refusal = next(filter(None, self._refusals(node, rule)), "")
        if refusal:
            self._reasons[node.name or ""] = refusal
            return
        weight_value = input_at(node, rule.weight)
        is_stored = weight_value is not None and is_constant(weight_value)
        weight = self._weight_site(node, rule, weight_value) if weight_value and is_stored else None
        in_float = rule.note if not rule.integer_kernel else self._in_float.get(node.name or "", "")
        if in_float:
            self._reasons[node.name or ""] = in_float
            return
        for index in rule.activations:
            value = input_at(node, index)
            if value is not None and not is_constant(value):
                self._ask(value)
        self._mark(node, "")
        tail = self._plan_bias(node, rule, weight) if weight is not None else node
        merged = tail is node and is_merged(node, rule)
        clamped = (tail.name or "") in self._integer and is_clamped(tail, self._target)
        if rule.output == "always" or merged or clamped:
            self._ask((clamp_behind(tail, self._target) or tail).outputs[0])

    def _refusals(self, node: ir.Node, rule: OpRule) -> Iterator[str]:
        yield attribute_refusal(node, rule)
        yield requantized_refusal(node)
        for index in rule.activations:
            value = input_at(node, index)
            if value is not None and (index != rule.weight or not is_constant(value)):
                yield self._refusal(value)
        weight, bias = input_at(node, rule.weight), input_at(node, rule.bias)
        if weight is not None:
            yield weight_refusal(weight, may_be_computed=rule.weight in rule.activations)
        if bias is not None:
            yield bias_refusal(bias)

    def _weight_site(self, node: ir.Node, rule: OpRule, value: ir.Value) -> WeightSite:
        axis = weight_axis(node, rule, value) if self._target.weight.per_axis else None
        format_ = self._target.weight_format
        site = WeightSite(value.name or "", node.name or "", rule.weight or 0, format_, axis)
        self._weights.append(site)
        return site

    def _plan_bias(self, node: ir.Node, rule: OpRule, weight: WeightSite) -> ir.Node:
        """Plan the bias, and return the node whose output is the operator's: itself, or the bias's Add."""
        reader, index = node, rule.bias
        if rule.bias_add and (found := bias_add_behind(node, weight)):
            reader, index = found
            self._mark_bias_add(reader, node)
        bias, activation = input_at(reader, index), input_at(node, rule.activations[0])
        if bias is not None and index is not None and activation is not None:
            site = BiasSite(bias.name or "", reader.name or "", index, activation.name or "", weight)
            self._biases.append(site)
        return reader

    def _mark_bias_add(self, add: ir.Node, node: ir.Node) -> None:
        self._bias_adds.add(add.name or "")
        source = node.inputs[0]
        # ONNX Runtime makes one Gemm of the two where it can make matrices of the input before it runs.
        if source is not None and (rank(source) == 2 or has_fixed_shape(source)):
            self._mark(add, f"bias of {node.name}")
        else:
            self._reasons[add.name or ""] = f"bias of {node.name}, added to its float result"

    # A request travels up the graph.

    def _ask(self, value: ir.Value) -> None:
        name = value.name or ""
        if name in self._sources:
            return
        self._sources[name] = name
        producer = value.producer()
        rule = rule_of(producer, self._target)
        if producer is None or rule is None:
            return
        if rule.kind == "same":
            self._ask_through(producer, name)
        elif rule.kind == "join":
            self._ask_all_sides(producer)
        elif rule.kind == "clamp":
            self._ask_before_clamp(producer)

    def _ask_before_clamp(self, clamp: ir.Node) -> None:
        if clamp_refusal(clamp):
            return
        self._reasons[clamp.name or ""] = "disappears into the quantized range of its result"
        before = clamp.inputs[0].producer() if clamp.inputs[0] is not None else None
        if before is None:
            return
        if clamp_behind(before, self._target) is not clamp:
            # Without the clamp a QuantizeLinear reads beside others what the operator gives, and ONNX Runtime
            # takes no operator for integer whose result is read as integers and as floats.
            if (before.name or "") in self._integer:
                self._ask(before.outputs[0])
            return
        rule = rule_of(before, self._target)
        if rule is not None and rule.kind == "join":
            self._ask_all_sides(before)
        if (before.name or "") in self._integer:
            self._mark(clamp, f"part of {before.name}")

    def _ask_through(self, node: ir.Node, name: str) -> None:
        value = node.inputs[0]
        rule = self._target.op[node.op_type]
        if value is None or (
            reason := attribute_refusal(node, rule)
            or output_refusal(node)
            or table_refusal(node)
            or self._refusal(value)
        ):
            self._reasons[node.name or ""] = reason
            return
        self._ask(value)
        self._sources[name] = self._sources[value.name or ""]
        self._mark(node, "moves integers")

    def _ask_all_sides(self, node: ir.Node) -> None:
        if (node.name or "") in self._integer or (node.name or "") in self._bias_adds:
            return
        inputs = [value for value in node.inputs if value is not None]
        reasons = [requantized_refusal(node), *map(self._refusal, inputs)]
        if reason := next(filter(None, reasons), ""):
            self._reasons[node.name or ""] = reason
            return
        self._mark(node, "")
        for value in inputs:
            self._ask(value)

    def _refusal(self, value: ir.Value) -> str:
        if (value.name or "") in self._refused:
            return self._refused[value.name or ""]
        if reason := dequantized_refusal(value):
            return reason
        if carries_mask(value):
            return "reads an attention mask, whose huge constant no 8-bit scale can hold"
        producer = value.producer()
        rule = rule_of(producer, self._target)
        # Between quantized tensors the runtime would take it for integer whatever this plan says of it.
        if producer is not None and rule is not None and rule.kind == "join":
            reason = attribute_refusal(producer, rule)
            if reason:
                return f"reads {producer.op_type} '{producer.name}': {reason}"
        return float_refusal(value)

    def _mark(self, node: ir.Node, reason: str) -> None:
        self._integer.add(node.name or "")
        self._reasons[node.name or ""] = reason

    def _layer(self, node: ir.Node) -> LayerPlan:
        name = node.name or ""
        sizes = [constant_size(value) for value in node.inputs if value is not None]
        quantized = name in self._integer
        reason = self._reasons.get(name, "")
        if not quantized and not reason:
            reason = self._float_reason(node)
        return LayerPlan(name, node.op_type, quantized, reason, sum(sizes))

    def _float_reason(self, node: ir.Node) -> str:
        if adds_mask(node):
            return "attention mask: its huge constant leaves no step for the scores"
        if any(attribute.type in NESTED for attribute in node.attributes.values()):
            return "holds a graph of its own, which stays float"
        if reason := integers_refusal(node):
            return reason
        rule = rule_of(node, self._target)
        if rule is None:
            return no_rule(node, self._target)
        if reason := attribute_refusal(node, rule):
            return reason
        by_kind = {"clamp": clamp_refusal(node) or "its result is not quantized", "apart": rule.note}
        return by_kind.get(
            rule.kind, "no integer operator reads it: in integers it would cost accuracy and save nothing"
        )
