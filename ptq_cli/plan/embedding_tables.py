"""Tables of embeddings: sites in blocks, and tables that are also the weight of a layer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import is_turned
from ptq_cli.models.graph_reading import constant_shape
from ptq_cli.plan.sites import LayerPlan, WeightSite
from ptq_cli.plan.target.rules import Target

GATHER = "Gather"
LEAST_ROWS = 8  # a smaller table is not worth the operators


def table_sites(model: ir.Model, target: Target) -> Iterator[WeightSite]:
    """Yield a site for each Gather of rows from a constant float matrix, if the target reads such blocks."""
    rule = target.op.get(GATHER)
    for node in model.graph if rule is not None and rule.blocks is not None else ():
        table = node.inputs[0] if _takes_rows(node, 0, model.graph) else None
        shape = constant_shape(table)
        if table is None or table.const_value is None or table.const_value.dtype != ir.DataType.FLOAT:
            continue
        if len(shape) == 2 and shape[0] >= LEAST_ROWS and not table.is_graph_output():
            yield WeightSite(
                tensor=table.name or "",
                node=node.name or "",
                input_index=0,
                format=target.weight_rule(GATHER).integers,
                axis=0,
                block_axis=1,
            )


def table_bits(bits: int, target: Target) -> int:
    """Return how many bits an element of a table takes where a layer's weight would have so many.

    GatherBlockQuantized reads 4 bits; operators of ONNX alone look up rows of bytes.
    """
    return 4 if bits <= 4 and target.runtime_operators else 8


@dataclass(frozen=True)
class TiedTable:
    """A constant that Gathers look rows up in, and that is also the weight of a layer.

    It is ``turned`` where the weight, as it is stored, is the transposed table.
    """

    table: str
    site: WeightSite
    turned: bool
    gathers: tuple[str, ...]


def tied_tables(graph: ir.Graph, weights: Sequence[WeightSite]) -> Iterator[TiedTable]:
    """Yield each table that only Gathers of rows and, as it is or transposed, a layer to quantize read.

    A weight whose scales do not belong to rows of the table is not tied to it, because each looked-up row
    needs its own scale.
    """
    nodes = {site.node: site for site in weights}
    for table in list(graph.initializers.values()):
        uses, name = list(table.uses()), table.name or ""
        gathers = [use.node for use in uses if _takes_rows(use.node, use.idx, graph)]
        others = [use.node for use in uses if use.node not in gathers]
        is_bound = table.is_graph_input() or table.is_graph_output()
        if not gathers or table.dtype != ir.DataType.FLOAT or is_bound:
            continue
        names = tuple(node.name or "" for node in gathers)
        if not others and (site := _turned(graph, table, weights)) is not None:
            yield TiedTable(name, site, True, names)
        elif others and all(_reads_rows(node, table, nodes.get(node.name or "")) for node in others):
            site = nodes[others[0].name or ""]
            # Its integers are stored as MatMulInteger reads them.
            turned = bool(site.dynamic) and others[0].attributes.get_int("transB", 0) == 1
            yield TiedTable(name, site, turned, names)


def tell_ties(
    graph: ir.Graph, layers: Iterable[LayerPlan], weights: Sequence[WeightSite]
) -> tuple[LayerPlan, ...]:
    """Return the layers, with the reasons of Gathers from tied tables."""
    tied = {
        name: f"looks up rows of the table '{item.table}' in the integer weight of '{item.site.node}'"
        for item in tied_tables(graph, weights)
        for name in item.gathers
    }
    return tuple(replace(layer, reason=tied.get(layer.name, layer.reason)) for layer in layers)


def _takes_rows(node: ir.Node, index: int, graph: ir.Graph) -> bool:
    is_gather = node.op_type == GATHER and node.domain == "" and node.graph is graph
    return is_gather and index == 0 and node.attributes.get_int("axis", 0) == 0


def _reads_rows(node: ir.Node, table: ir.Value, site: WeightSite | None) -> bool:
    if site is None or site.as_pair or site.kernel:
        return False
    if site.tensor != table.name or site.axis not in (None, 1 if site.block_kernel else 0):
        return False
    return sum(value is table for value in node.inputs) == 1


def _turned(graph: ir.Graph, table: ir.Value, weights: Sequence[WeightSite]) -> WeightSite | None:
    """Return the weight that is the transpose of a table."""
    shape = constant_shape(table)[::-1]
    for site in weights if len(shape) == 2 else ():
        weight = graph.initializers[site.tensor]
        if constant_shape(weight) != shape:
            continue
        own = all(use.node.name in {item.node for item in weights} for use in weight.uses())
        along = 0 if site.block_kernel else 1
        if own and not site.as_pair and site.axis in (None, along) and is_turned(table, weight):
            return site
    return None
