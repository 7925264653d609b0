"""Layers of graphs nested in If, Loop and Scan: which of them have tensors that were not measured."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.core.formats import FloatFormat, IntegerFormat
from ptq_cli.core.pair_sums import Order, PairRule, conv_orders, conv_transpose_orders
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, labeled_graphs, nested_graphs
from ptq_cli.models.integer_operators import DYNAMIC_LSTM
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target

ITERATING = ("Loop", "Scan")
CONTAINS_LAYERS = "runs the layers of its nested graph, which are listed by their own names"


def nested_refusals(graph: ir.Graph, target: Target) -> dict[str, str]:
    """Return the layers of nested graphs that stay float whatever they compute, with the reason.

    Tensors of an If, Loop or Scan are handed out of it while the model is calibrated. An operator of another
    domain has graphs whose inputs and outputs only it knows.
    """
    found: dict[str, str] = {}
    for node in graph:
        reason = _refusal(node, target)
        for inner in nested_graphs(node):
            if reason:
                found |= {item.name or "": reason for item in every_node(inner)}
            else:
                found |= nested_refusals(inner, target)
    return found


def layers_never_run(graph: ir.Graph, never_seen: Collection[str]) -> dict[str, str]:
    """Return the layers of nested graphs that were never run, with the reason."""
    found: dict[str, str] = {}
    for node in graph:
        for label, inner in labeled_graphs(node).items():
            if any(value.name in never_seen for value in _own_values(inner)):
                reason = _never_ran(node, label)
                found |= {item.name or "": reason for item in every_node(inner)}
            else:
                found |= layers_never_run(inner, never_seen)
    return found


def _refusal(node: ir.Node, target: Target) -> str:
    what = f"is inside {node.domain}{'.' if node.domain else ''}{node.op_type} '{node.name}'"
    if node.domain or node.op_type not in ("If", *ITERATING):
        return f"{what}, whose tensors cannot be measured"
    if target.runtime != ONNXRUNTIME:
        return f"{what}: how target {target.name} treats pairs in a nested graph is not known"
    if any(node.attributes.get_ints("scan_output_axes", ())):
        return f"{what}, which stacks its results along another axis than the first: they are not measured"
    return ""


def _never_ran(node: ir.Node, label: str) -> str:
    unknown = "so the ranges of its tensors are not known"
    if node.op_type in ITERATING:
        return f"the body of {node.op_type} '{node.name}' never ran during calibration, {unknown}"
    return f"the {label} of {node.op_type} '{node.name}' was never taken during calibration, {unknown}"


def _own_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


# Which weights an integer kernel adds up in pairs, and in which orders it may read them.


Stored = tuple[str, int | None]
"""A weight's name, and the axis of its output channels: readers with another one have their own integers."""
CHANNELS_LAST = 2
"""Which axis of a recurrent layer's weight, (directions, channels, inputs), its kernel adds up."""
MATRIX, BYTE, MOST_EXACT = 2, 8, 7
LARGEST_OF_7_BITS = 127
"""Two products of it with a weight of 8 bits stay below 2^15: nothing saturates."""


def in_pairs(
    graph: ir.Graph, plan: Plan, target: Target, sites: Iterable[WeightSite]
) -> dict[Stored, PairRule]:
    """Return what the pairs of each weight may add up to, for all that read the same integers.

    Nothing is asked of weights that no kernel adds up in 16 bits: those read as floats or in blocks, those
    of 7 bits or fewer, those of a depthwise Conv, and those that meet activations of 7 bits or fewer.
    """
    nodes = {node.name or "": node for node in every_node(graph)}
    between_pairs = {layer.name for layer in plan.layers if layer.between_pairs}
    orders: dict[Stored, dict[Order, None]] = {}
    for site in sites:
        node = nodes[site.node]
        # Of [weight] for every operator, also for one whose weights have a format of their own.
        if target.weight.pair_sum and _is_summed(node, plan, site, target) and site.node not in between_pairs:
            found = _orders(node, site, target.weight.pair_orders)
            orders.setdefault((site.tensor, site.axis), {}).update(dict.fromkeys(found))
    return {name: PairRule(target.weight.pair_sum, tuple(found)) for name, found in orders.items() if found}


def with_pairs(
    graph: ir.Graph, plan: Plan, target: Target, sites: Mapping[WeightSite, WeightSite]
) -> dict[WeightSite, WeightSite]:
    """Return the sites of a plan, by what they were before, with what their pairs may add up to."""
    rules = in_pairs(graph, plan, target, sites.values())
    return {site: replace(new, pairs=rules.get((new.tensor, new.axis))) for site, new in sites.items()}


def _is_summed(node: ir.Node, plan: Plan, site: WeightSite, target: Target) -> bool:
    # DoReFa's odd integers of 7 bits reach 127.
    if site.block_size is not None or site.format.bits < MOST_EXACT or isinstance(site.format, FloatFormat):
        return False
    if site.kernel or site.dynamic:
        return True
    if not target.op[node.op_type].integer_kernel:
        return False
    source = input_at(node, 0)
    read = plan.activations.get(source.name or "") if source is not None else None
    if read is None or not isinstance(read.format, IntegerFormat) or read.format.bits > BYTE:
        return False
    # Signed ones are shifted by half of their type before they are multiplied, and so never small.
    return read.format.signed or read.format.qmax > LARGEST_OF_7_BITS


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
        return ((1,),) if is_turned else ((max(len(shape) - MATRIX, 0),),)
    return ()


# Which operators work along one axis with several axes behind it.


LEAST_BEHIND = 2
"""Axes: a single one is joined already."""


def axis_of(node: ir.Node) -> int:
    """Return the axis of an operator whose input has a known rank, counted from 0."""
    x = node.inputs[0]
    if x is None or x.shape is None:
        raise ValueError(f"the rank of what '{node.name}' reads is not known")
    return node.attributes.get_int("axis", -1) % len(x.shape)


def has_axes_to_join(node: ir.Node) -> bool:
    """Tell whether there are two or more axes behind that of an operator."""
    x = node.inputs[0]
    if x is None or x.shape is None or not len(x.shape):
        return False
    return len(x.shape) - 1 - axis_of(node) >= LEAST_BEHIND
