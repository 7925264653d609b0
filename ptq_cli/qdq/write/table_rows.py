"""Pass: Gathers from a table that is a layer's weight too take their rows from its integers."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import RESULT, FreshNames, every_node
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.plan.embedding_tables import TiedTable
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.dynamic_parts import DynamicPart, dynamic_parts
from ptq_cli.qdq.write.pair_nodes import add_initializer, make_cast, make_dequantize, put_in_front, take_place

Factors = tuple[ir.Value, ir.Value]
"""Integers, and their scale."""


def share_tables(model: ir.Model, tied: Sequence[TiedTable]) -> dict[str, str]:
    """Let Gathers take rows of integers, and dequantize these, where a layer has the table as its weight.

    Requires: the layers' weights are stored already. Ensures: of each table there is one constant of
    integers; a row has the values, to the bit, that the layer's DequantizeLinear gives. Where the layer reads
    the table turned, a Transpose turns it, which a runtime does once, as it loads.

    A weight that is stored as anything else than integers with a zero point of 0, such as indices into a
    codebook, shares nothing: the table stays as it is.

    Returns:
        of constants that are turned now, the name that each has, by the one that it had.
    """
    renamed: dict[str, str] = {}
    graph, names = model.graph, FreshNames.of(model.graph)
    nodes, parts = {node.name: node for node in every_node(graph)}, dynamic_parts(model)
    for item in tied:
        node = nodes[item.site.node]
        dequantize = dequantized_by(node.inputs[item.site.input_index])
        if item.site.block_kernel and dequantize is not None:
            renamed |= _share_blocks(graph, item, dequantize, [nodes[name] for name in item.gathers], names)
            continue
        found = _stored_apart(item.site, parts) or _dequantized(node, item.site)
        if found is None:
            continue
        integers, scale = found
        if item.turned:
            integers = _turn(graph, integers, f"{item.table}.quantized", names)
        for name in item.gathers:
            _take_rows(graph, nodes[name], integers, scale, names)
        table = graph.initializers[item.table]
        if not table.uses():
            del graph.initializers[item.table]
    return renamed


def _share_blocks(
    graph: ir.Graph, item: TiedTable, dequantize: ir.Node, gathers: Sequence[ir.Node], names: FreshNames
) -> dict[str, str]:
    """Let Gathers read a layer's weight in blocks, restored as the table has it; return as ``share_tables``.

    A Gather whose table is stored by itself has nothing to share.
    """
    gathers = [node for node in gathers if node.inputs[0] is graph.initializers.get(item.table)]
    if not gathers:
        return {}
    values, renamed = [value for value in dequantize.inputs if value is not None], {}
    if item.turned:
        parts, before = ("quantized", "scale", "zero_point"), [value.name or "" for value in values]
        values = [
            _turn(graph, value, f"{item.table}.{part}", names)
            for value, part in zip(values, parts, strict=False)
        ]
        renamed = {old: value.name or "" for old, value in zip(before, values, strict=True)}
    size = dequantize.attributes.get_int("block_size", 0)
    for node in gathers:
        name = names.claim(f"{node.name}/DequantizeLinear")
        integers, scale, *zeros = values
        restored = make_dequantize(integers, scale, zeros[0] if zeros else None, name, 1, size)
        put_in_front(node, restored)
        node.replace_input_with(0, restored.outputs[0])
    table = graph.initializers[item.table]
    if not table.uses():
        del graph.initializers[item.table]
    return renamed


def _stored_apart(site: WeightSite, parts: Mapping[str, DynamicPart]) -> Factors | None:
    """Return integers and scale of a weight that an operator on integers reads; None of any other."""
    part = parts.get(site.node)
    if part is None or part.integers.const_value is None or part.integers.dtype != ir.DataType.INT8:
        return None
    return part.integers, part.scale


def _dequantized(node: ir.Node, site: WeightSite) -> Factors | None:
    """Return integers and scale of a weight that a layer reads restored; None if they are not plain."""
    dequantize = dequantized_by(node.inputs[site.input_index])
    if dequantize is None or not _is_plain(dequantize):
        return None
    integers, scale = dequantize.inputs[:2]
    assert integers is not None and scale is not None  # noqa: S101 - a DequantizeLinear has them
    return integers, scale


def _is_plain(dequantize: ir.Node) -> bool:
    integers, scale, zeros = (*dequantize.inputs, None)[:3]
    if integers is None or integers.const_value is None or integers.dtype != ir.DataType.INT8:
        return False
    if scale is None or scale.const_value is None or "block_size" in dequantize.attributes:
        return False
    return zeros is not None and zeros.const_value is not None and not zeros.const_value.numpy().any()


def _turn(graph: ir.Graph, turned: ir.Value, name: str, names: FreshNames) -> ir.Value:
    """Store a matrix turned, under another name, and turn it back for those that read it."""
    assert turned.const_value is not None  # noqa: S101 - it was found plain
    integers = add_initializer(graph, names.claim(name), turned.const_value.numpy().T)
    node = ir.node("Transpose", [integers], {"perm": [1, 0]}, name=names.claim(f"{name}/Transpose"))
    output = node.outputs[0]
    output.name, output.type, output.shape = f"{node.name}{RESULT}", turned.type, turned.shape
    turned.replace_all_uses_with(output)
    graph.insert_before(next(iter(graph)), [node])
    del graph.initializers[turned.name or ""]
    return integers


def _take_rows(
    graph: ir.Graph, gather: ir.Node, integers: ir.Value, scale: ir.Value, names: FreshNames
) -> None:
    """Replace a Gather of floats by one of integers and what makes floats of them; the last has its name."""
    indices = gather.inputs[1]
    rows = _gather(integers, indices, names.claim(f"{gather.name}/rows"), gather.outputs[0].shape)
    values = make_cast(rows.outputs[0], ir.DataType.FLOAT, names.claim(f"{gather.name}/Cast"))
    made = [rows, values]
    steps = scale
    if scale.shape is not None and len(scale.shape):
        own = _gather(scale, indices, names.claim(f"{gather.name}/scales"), None)
        last = add_initializer(graph, names.claim(f"{gather.name}.last"), np.array([-1], np.int64))
        column = ir.node("Unsqueeze", [own.outputs[0], last], name=names.claim(f"{gather.name}/Unsqueeze"))
        steps = column.outputs[0]
        steps.name, steps.type = f"{column.name}{RESULT}", scale.type
        made += [own, column]
    put_in_front(gather, *made)
    take_place(gather, ir.node("Mul", [values.outputs[0], steps], name=gather.name))


def _gather(table: ir.Value, indices: ir.Value | None, name: str, shape: ir.Shape | None) -> ir.Node:
    node = ir.node("Gather", [table, indices], {"axis": 0}, name=name)
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = f"{name}{RESULT}", table.type, shape
    return node
