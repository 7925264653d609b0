"""Weights whose products an integer kernel adds in pairs, and the orders in which it reads them."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.core.formats import FloatFormat, IntegerFormat
from ptq_cli.core.pair_sums import Order, PairRule, conv_orders, conv_transpose_orders
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at
from ptq_cli.models.integer_operators import DYNAMIC_LSTM
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target

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
