"""Pass: Gathers from a table that is a layer's weight too take their rows from its integers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.plan.embedding_tables import TiedTable
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.read.stored_constants import DynamicPart, dynamic_parts
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, put_in_front, take_place


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
    graph, new = model.graph, NewNodes(model.graph)
    nodes, parts = {node.name: node for node in every_node(graph)}, dynamic_parts(model)
    for item in tied:
        node, table = nodes[item.site.node], graph.initializers.get(item.table)
        gathers = [nodes[name] for name in item.gathers]
        dequantize = dequantized_by(node.inputs[item.site.input_index])
        if item.site.block_kernel and dequantize is not None:
            # A Gather whose table is stored by itself has nothing to share.
            gathers = [gather for gather in gathers if gather.inputs[0] is table]
            renamed |= _share_blocks(new, item, dequantize, gathers) if gathers else {}
        elif (found := _stored_apart(item.site, parts) or _plain_integers(dequantize)) is not None:
            integers, scale = found
            integers = _turn(new, integers, f"{item.table}.quantized") if item.turned else integers
            for gather in gathers:
                _take_rows(new, gather, integers, scale)
        if gathers and table is not None and not table.uses():
            del graph.initializers[item.table]
    return renamed


def _share_blocks(
    new: NewNodes, item: TiedTable, dequantize: ir.Node, gathers: Sequence[ir.Node]
) -> dict[str, str]:
    """Let Gathers read a layer's weight in blocks, restored as the table has it; as ``share_tables``."""
    values, renamed = [value for value in dequantize.inputs if value is not None], {}
    if item.turned:
        before = [value.name or "" for value in values]
        parts = zip(values, ("quantized", "scale", "zero_point"), strict=False)
        values = [_turn(new, value, f"{item.table}.{part}") for value, part in parts]
        renamed = {old: value.name or "" for old, value in zip(before, values, strict=True)}
    size = dequantize.attributes.get_int("block_size", 0)
    for node in gathers:
        restored = new.dequantize(values[0], values[1:], node.name or "", 1, size)
        node.replace_input_with(0, put_in_front(node, restored))
    return renamed


def _stored_apart(site: WeightSite, parts: Mapping[str, DynamicPart]) -> tuple[ir.Value, ir.Value] | None:
    """Return integers and scale of a weight that an operator on integers reads; None of any other."""
    part = parts.get(site.node)
    if part is None or part.integers.const_value is None or part.integers.dtype != ir.DataType.INT8:
        return None
    return part.integers, part.scale


def _plain_integers(dequantize: ir.Node | None) -> tuple[ir.Value, ir.Value] | None:
    """Return integers and scale of a restored weight; None if these are not int8 with a zero point of 0."""
    if dequantize is None or "block_size" in dequantize.attributes:
        return None
    integers, scale, zeros = (*dequantize.inputs, None)[:3]
    if integers is None or integers.const_value is None or integers.dtype != ir.DataType.INT8:
        return None
    if scale is None or scale.const_value is None or zeros is None or zeros.const_value is None:
        return None
    return None if zeros.const_value.numpy().any() else (integers, scale)


def _turn(new: NewNodes, turned: ir.Value, name: str) -> ir.Value:
    """Store a matrix turned, under another name, and turn it back for those that read it."""
    assert turned.const_value is not None  # noqa: S101 - it was found plain
    integers, claimed = new.constant(name, turned.const_value.numpy().T), new.claim(f"{name}/Transpose")
    perm = {"perm": [1, 0]}
    node = new_node("Transpose", [integers], claimed, attributes=perm, dtype=turned.dtype, shape=turned.shape)
    turned.replace_all_uses_with(node.outputs[0])
    new.graph.insert_before(next(iter(new.graph)), [node])
    del new.graph.initializers[turned.name or ""]
    return integers


def _take_rows(new: NewNodes, gather: ir.Node, integers: ir.Value, scale: ir.Value) -> None:
    """Replace a Gather of floats by one of integers and what makes floats of them; the last has its name."""
    indices, name, shape = gather.inputs[1], gather.name, gather.outputs[0].shape
    to_float = {"to": int(ir.DataType.FLOAT)}

    def put(op_type: str, inputs: list[ir.Value | None], part: str, **of: Any) -> ir.Value:
        return new.put(gather, op_type, inputs, f"{name}/{part}", **of)

    rows = put(
        "Gather", [integers, indices], "rows", attributes={"axis": 0}, dtype=integers.dtype, shape=shape
    )
    steps, values = (
        scale,
        put("Cast", [rows], "Cast", attributes=to_float, dtype=ir.DataType.FLOAT, shape=shape),
    )
    if scale.shape is not None and len(scale.shape):
        own = put("Gather", [scale, indices], "scales", attributes={"axis": 0}, dtype=scale.dtype)
        last = new.constant(f"{name}.last", np.array([-1], np.int64))
        steps = put("Unsqueeze", [own, last], "Unsqueeze", dtype=scale.dtype)
    take_place(gather, ir.node("Mul", [values, steps], name=name))
