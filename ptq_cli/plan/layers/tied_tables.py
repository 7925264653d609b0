"""A table of embeddings that is also the weight of the last layer: one set of integers serves both."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.models.files.turned_tables import is_turned
from ptq_cli.plan.sites import LayerPlan, WeightSite


@dataclass(frozen=True)
class TiedTable:
    """A constant that Gathers look rows up in, and that is also the weight of a layer.

    Attributes:
        table: the name of the constant that the Gathers read.
        site: the site of the weight.
        turned: the weight, as it is stored, is the transposed table.
        gathers: the names of the Gathers.
    """

    table: str
    site: WeightSite
    turned: bool
    gathers: tuple[str, ...]


def tied_tables(graph: ir.Graph, weights: Sequence[WeightSite]) -> Iterator[TiedTable]:
    """Yield each table that only Gathers of rows and, as it is or transposed, a layer to quantize read.

    Edge case:
        A weight whose scales do not belong to rows of the table is not tied to it, because each looked-up row
        needs its own scale.
    """
    nodes: dict[str | None, WeightSite] = {site.node: site for site in weights}
    for table in list(graph.initializers.values()):
        uses = list(table.uses())
        gathers = [use.node for use in uses if _takes_rows(use.node, use.idx, graph)]
        others = [use.node for use in uses if use.node not in gathers]
        if (
            not gathers
            or table.dtype != ir.DataType.FLOAT
            or table.is_graph_input()
            or table.is_graph_output()
        ):
            continue
        names = tuple(node.name or "" for node in gathers)
        if not others and (site := _turned(graph, table, weights)) is not None:
            yield TiedTable(table.name or "", site, True, names)
        elif others and all(_reads_rows(node, table, nodes) for node in others):
            site = nodes[others[0].name]
            # Its integers are stored as MatMulInteger reads them.
            turned = bool(site.dynamic) and others[0].attributes.get_int("transB", 0) == 1
            yield TiedTable(table.name or "", site, turned, names)


def tell_ties(
    graph: ir.Graph, layers: Iterable[LayerPlan], weights: Sequence[WeightSite]
) -> tuple[LayerPlan, ...]:
    """Return the layers, with the reasons of Gathers from tied tables."""
    tied: Mapping[str, str] = {
        name: f"looks up rows of the table '{item.table}' in the integer weight of '{item.site.node}'"
        for item in tied_tables(graph, weights)
        for name in item.gathers
    }
    return tuple(replace(layer, reason=tied.get(layer.name, layer.reason)) for layer in layers)


def _takes_rows(node: ir.Node, index: int, graph: ir.Graph) -> bool:
    is_gather = node.op_type == "Gather" and node.domain == "" and node.graph is graph
    return is_gather and index == 0 and node.attributes.get_int("axis", 0) == 0


def _reads_rows(node: ir.Node, table: ir.Value, sites: Mapping[str | None, WeightSite]) -> bool:
    site = sites.get(node.name)
    if site is None or site.as_pair or site.as_product or site.kernel:
        return False
    if site.tensor != table.name or site.axis not in (None, 1 if site.block_kernel else 0):
        return False
    return sum(value is table for value in node.inputs) == 1


def _turned(graph: ir.Graph, table: ir.Value, weights: Sequence[WeightSite]) -> WeightSite | None:
    """Return the weight that is the transpose of a table."""
    if table.const_value is None or len(table.const_value.shape) != 2:
        return None
    shape = tuple(reversed(table.const_value.shape.numpy()))
    for site in weights:
        weight = graph.initializers[site.tensor]
        if weight.const_value is None or tuple(weight.const_value.shape.numpy()) != shape:
            continue
        own = all(use.node.name in {item.node for item in weights} for use in weight.uses())
        along = 0 if site.block_kernel else 1
        if own and not site.as_pair and site.axis in (None, along) and is_turned(table, weight):
            return site
    return None
