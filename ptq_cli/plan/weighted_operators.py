"""Operators with weights: sites, requested tensors, products added in pairs, dynamic activations."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import onnx_ir as ir

from ptq_cli.core.formats import FloatFormat, IntegerFormat
from ptq_cli.core.pair_sums import Order, PairRule, conv_orders, conv_transpose_orders
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, rank_of
from ptq_cli.models.pair_operators import DYNAMIC_LSTM
from ptq_cli.plan.attention_masks import MASKED, carries_mask
from ptq_cli.plan.graph_questions import is_constant, weight_axis
from ptq_cli.plan.left_layers import dequantized_refusal, requantized_refusal
from ptq_cli.plan.refusals import (
    Reasons,
    angle_refusal,
    attribute_refusal,
    bias_add_behind,
    bias_refusal,
    clamp_behind,
    float_refusal,
    is_clamped,
    is_merged,
    merges_bias_add,
    outer_product_refusal,
    reader_refusal,
    weight_refusal,
)
from ptq_cli.plan.requests import Requests
from ptq_cli.plan.sites import BiasSite, Plan, WeightSite
from ptq_cli.plan.target.rules import OpRule, Target
from ptq_cli.recipe.declaration import TENSOR

TWO_ACTIVATIONS = (
    "both of its inputs are computed while the model runs: making integers of both at each run saves little "
    "time, and costs accuracy"
)


def dynamic_operators(target: Target) -> frozenset[str]:
    """Return the operators that a target computes with ranges that are found at each run."""
    return frozenset(name for name, rule in target.op.items() if rule.dynamic)


def slow_layers(model: ir.Model, target: Target) -> dict[str, str]:
    """Return the layers that are slower with ranges found at each run than in float, with the reason."""
    notes = {name: rule.dynamic_note for name, rule in target.op.items() if rule.dynamic_note}
    return {node.name or "": notes[node.op_type] for node in every_node(model.graph) if node.op_type in notes}


def dynamic_candidates(model: ir.Model, plan: Plan, target: Target) -> tuple[str, ...]:
    """Return the layers that could find ranges at each run and do not, in the order of the graph."""
    names = {layer.name for layer in plan.layers if layer.quantized and not layer.dynamic}
    return tuple(
        node.name or ""
        for node in every_node(model.graph)
        if node.name in names
        and (rule := target.op.get(node.op_type)) is not None
        and rule.kind == "compute"
        and not rule.dynamic_note
        and not dynamic_refusal(node, rule, target.name)
    )


def dynamic_refusal(node: ir.Node, rule: OpRule, target: str) -> str:
    """Return why the activations of a layer cannot become integers at each run, or an empty string."""
    return next(filter(None, _refusals(node, rule, target)), "")


def _refusals(node: ir.Node, rule: OpRule, target: str) -> Iterator[str]:
    if not rule.dynamic:
        yield f"target {target} has no integer {node.op_type} with ranges found at each run"
    yield attribute_refusal(node, rule)
    yield angle_refusal(node)
    yield requantized_refusal(node)
    source, weight = input_at(node, rule.activations[0]), input_at(node, rule.weight)
    if source is not None:
        yield dequantized_refusal(source) or float_refusal(source)
        yield MASKED if carries_mask(source) else ""
    if weight is None or not is_constant(weight):
        yield TWO_ACTIVATIONS
        return
    yield weight_refusal(weight, may_be_computed=False)
    if (rank_of(weight) or 0) < 2:
        yield f"its weight '{weight.name}' is not a matrix"
    if node.op_type == "Conv" and (bias := input_at(node, rule.bias)) is not None:
        yield bias_refusal(bias)
    if node.attributes.get_int("transA", 0) != 0:
        yield "transA is 1: its input would have to be transposed before it is quantized"


LEAST_SAVED = 1024  # bytes; with less a file would be no smaller: names and operators take some hundred, too
SAVED, ADDED = 3, 5  # bytes that an integer saves, and that the scale and zero point of a channel add
COMPUTED_DYNAMICALLY = "computes in integers, with ranges found at each run"


def plan_stored(node: ir.Node, rule: OpRule, requests: Requests, in_float: Reasons) -> Iterator[WeightSite]:
    """Yield the weights of an operator with float activations, and note how it is computed."""
    name = node.name or ""
    values = {index: value for index in rule.constants if (value := input_at(node, index)) is not None}
    if refusal := next(filter(None, _storing_refusals(node, rule, [*values.values()])), ""):
        requests.reasons[name] = refusal
        return
    # The target's operator on integers is faster from some size on.
    size = sum(prod(constant_shape(value)[1:]) for value in values.values())
    fits = node.attributes.get_int("layout", 0) == 0 and size >= rule.kernel_from
    kernel = rule.kernel if fits and name not in in_float else ""
    if kernel:
        requests.mark(node, COMPUTED_DYNAMICALLY)
    else:
        requests.reasons[name] = in_float.get(name, rule.note)
    settings = requests.rules.target.weight_rule(node.op_type)
    for index, value in values.items():
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


def _storing_refusals(node: ir.Node, rule: OpRule, values: Sequence[ir.Value]) -> Iterator[str]:
    yield attribute_refusal(node, rule)
    for value in values:
        yield weight_refusal(value, may_be_computed=False)
    shapes = [constant_shape(value) for value in values]
    if sum(SAVED * prod(shape) - ADDED * shape[rule.weight_axis] for shape in shapes) < LEAST_SAVED:
        yield "its weights are too small for integers to make the file smaller"


@dataclass(kw_only=True)
class Computing:
    """Plans compute operators one by one, and collects the sites of their weights and biases.

    Attributes:
        in_float: layers without an integer kernel for their weight, with the reason.
        dynamic: layers whose activations become integers at each run, with what shares a scale of them.
        products: layers whose weight is integers that become floats when the model is opened.
    """

    requests: Requests
    in_float: Reasons
    dynamic: Mapping[str, str]
    products: Container[str] = ()
    weights: list[WeightSite] = field(default_factory=list)
    biases: list[BiasSite] = field(default_factory=list)

    def plan(self, node: ir.Node, rule: OpRule) -> None:
        """Plan an operator: request its activations, or note the reason why it stays float."""
        requests, name = self.requests, node.name or ""
        weight, site = input_at(node, rule.weight), None
        if name in self.dynamic and name not in self.in_float:
            refusal = dynamic_refusal(node, rule, requests.rules.target.name)
            if refusal or weight is None:
                requests.reasons[name] = refusal
                return
            # What a Conv sums up are many places of its input: these have one scale together.
            kind = TENSOR if node.op_type == "Conv" else self.dynamic[name]
            self._weight_site(node, rule, weight, kind)
            requests.mark_dynamic(node, COMPUTED_DYNAMICALLY)
            return
        if refusal := next(filter(None, self._refusals(node, rule)), ""):
            requests.reasons[name] = refusal
            return
        if weight is not None and is_constant(weight):
            site = self._weight_site(node, rule, weight)
        if in_float := (self.in_float.get(name, "") if rule.integer_kernel else rule.note):
            requests.reasons[name] = in_float
            return
        for value in (input_at(node, index) for index in rule.activations):
            if value is not None and not is_constant(value):
                requests.ask(value)
        requests.mark(node)
        tail = self._plan_bias(node, rule, site) if site is not None else node
        if self._needs_output(node, rule, tail):
            requests.ask((clamp_behind(tail, requests.rules) or tail).outputs[0])

    def _needs_output(self, node: ir.Node, rule: OpRule, tail: ir.Node) -> bool:
        if rule.output == "always" or (tail is node and is_merged(node, rule)):
            return True
        is_integer = (tail.name or "") in self.requests.integer
        return rule.clamp_asks and is_integer and is_clamped(tail, self.requests.rules)

    def _refusals(self, node: ir.Node, rule: OpRule) -> Iterator[str]:
        yield attribute_refusal(node, rule) or reader_refusal(node, rule)
        yield angle_refusal(node)
        yield outer_product_refusal(node)
        yield requantized_refusal(node)
        for index in rule.activations:
            value = input_at(node, index)
            if value is not None and (index != rule.weight or not is_constant(value)):
                yield self.requests.refusal(value)
        weight, bias = input_at(node, rule.weight), input_at(node, rule.bias)
        if weight is not None:
            yield weight_refusal(weight, may_be_computed=rule.weight in rule.activations)
        if bias is not None and self._stores_biases:
            yield bias_refusal(bias)

    @property
    def _stores_biases(self) -> bool:
        return self.requests.rules.target.bias.format != "float"

    def _weight_site(self, node: ir.Node, rule: OpRule, value: ir.Value, dynamic: str = "") -> WeightSite:
        settings = self.requests.rules.target.weight_rule(node.op_type)
        site = WeightSite(
            tensor=value.name or "",
            node=node.name or "",
            input_index=rule.weight or 0,
            format=settings.integers,
            axis=weight_axis(node, rule, value) if settings.per_axis else None,
            as_pair=settings.stored == "pairs" and node.name not in self.products,
            as_product=node.name in self.products,
            dynamic=dynamic,
            # What a MatMul reads is centered mostly: on transformers it gains nothing.
            preserves_sums=settings.preserve_sums and node.op_type in ("Conv", "ConvTranspose"),
        )
        self.weights.append(site)
        return site

    def _plan_bias(self, node: ir.Node, rule: OpRule, weight: WeightSite) -> ir.Node:
        """Plan the bias, and return the node whose output is the operator's: itself, or the bias's Add."""
        reader, index = node, rule.bias
        found = bias_add_behind(node, weight) if rule.bias_add else None
        merged = merges_bias_add(node, rule, self.requests.rules.target)
        # A kernel that always returns integers does so before an Add that is not merged with it.
        if found is not None and (merged or rule.output != "always"):
            reader, index = found
            self._mark_bias_add(reader, node, merged=merged)
        bias, activation = input_at(reader, index), input_at(node, rule.activations[0])
        if self._stores_biases and bias is not None and index is not None and activation is not None:
            site = BiasSite(
                tensor=bias.name or "",
                node=reader.name or "",
                input_index=index,
                activation=activation.name or "",
                weight=weight,
            )
            self.biases.append(site)
        return reader

    def _mark_bias_add(self, add: ir.Node, node: ir.Node, *, merged: bool) -> None:
        self.requests.bias_adds.add(add.name or "")
        if merged:
            self.requests.mark(add, f"bias of {node.name}")
        elif self._stores_biases:
            self.requests.reasons[add.name or ""] = f"bias of {node.name}, added to its float result"
        else:
            self.requests.reasons[add.name or ""] = f"bias of {node.name}, which the target computes in float"


CHANNELS_LAST = 2  # axis of a recurrent weight, (directions, channels, inputs), that its kernel adds up
LARGEST_OF_7_BITS = 127  # two products of it with a weight of 8 bits stay below 2^15: nothing saturates


def with_pairs(
    graph: ir.Graph, plan: Plan, target: Target, sites: Mapping[WeightSite, WeightSite]
) -> dict[WeightSite, WeightSite]:
    """Return the sites of a plan, by what they were before, with what their pairs may add up to.

    That holds for all that read the same integers: those of one weight along one axis. Nothing is asked of
    weights that no kernel adds up in 16 bits: those read as floats or in blocks, those of 7 bits or fewer,
    those of a depthwise Conv, and those that meet activations of 7 bits or fewer.
    """
    nodes = {node.name or "": node for node in every_node(graph)}
    between_pairs = {layer.name for layer in plan.layers if layer.between_pairs}
    orders: dict[tuple[str, int | None], dict[Order, None]] = {}
    for site in sites.values():
        node = nodes[site.node]
        # Of [weight] for every operator, also for one whose weights have a format of their own.
        if target.weight.pair_sum and _is_summed(node, plan, site, target) and site.node not in between_pairs:
            found = _orders(node, site, target.weight.pair_orders)
            orders.setdefault((site.tensor, site.axis), {}).update(dict.fromkeys(found))
    rules = {key: PairRule(target.weight.pair_sum, tuple(found)) for key, found in orders.items() if found}
    return {site: replace(new, pairs=rules.get((new.tensor, new.axis))) for site, new in sites.items()}


def _is_summed(node: ir.Node, plan: Plan, site: WeightSite, target: Target) -> bool:
    # DoReFa's odd integers of 7 bits reach 127.
    if site.block_size is not None or site.format.bits < 7 or isinstance(site.format, FloatFormat):
        return False
    if site.kernel or site.dynamic:
        return True
    source = input_at(node, 0)
    read = plan.activations.get(source.name or "") if source is not None else None
    if read is None or not isinstance(read.format, IntegerFormat) or read.format.bits > 8:
        return False
    # Signed ones are shifted by half of their type before they are multiplied, and so never small.
    is_large = read.format.signed or read.format.qmax > LARGEST_OF_7_BITS
    return is_large and target.op[node.op_type].integer_kernel


def _orders(node: ir.Node, site: WeightSite, kinds: Collection[str]) -> tuple[Order, ...]:
    shape = constant_shape(input_at(node, site.input_index))
    groups = node.attributes.get_int("group", 1)
    if site.kernel == DYNAMIC_LSTM:
        return ((CHANNELS_LAST,),)
    if node.op_type == "Conv":
        # ConvInteger adds up in 32 bits, and what it multiplies is exact with any weights.
        return () if site.dynamic else conv_orders(shape, groups, kinds)
    if node.op_type == "ConvTranspose":
        return conv_transpose_orders(groups, kinds)
    if node.op_type in ("Gemm", "MatMul") and shape:
        is_turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        return ((1,),) if is_turned else ((max(len(shape) - 2, 0),),)
    return ()
