"""Pass: Gathers from a table in blocks take rows of integers, and make floats of those rows alone.

Requires: a Gather reads a DequantizeLinear of the whole table, which is how a recovery and the comparison
with the float graph see it. Ensures: of 4 bits it is GatherBlockQuantized, ONNX Runtime's own operator; of
8 bits the integers and the scales are gathered and multiplied. What is computed is
the same, bit for bit; the last operator has the Gather's name.

Source:
    ONNX Runtime's ContribOperators.md, com.microsoft.GatherBlockQuantized.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import RESULT, FreshNames
from ptq_cli.models.operators.dynamic_lstm import MICROSOFT
from ptq_cli.models.operators.pair_operators import dequantized_by
from ptq_cli.qdq.write.pair_nodes import add_initializer, make_cast, put_in_front

LOOKUP = "GatherBlockQuantized"
HALF_BYTES = (ir.DataType.INT4, ir.DataType.UINT4)


def write_table_lookups(model: ir.Model) -> None:
    """Replace each Gather of rows from a table in blocks.

    Args:
        model: a quantized graph, which is changed in place.
    """
    names = FreshNames.of(model.graph)
    for node in list(model.graph):
        dequantize = dequantized_by(node.inputs[0]) if node.op_type == "Gather" and node.inputs else None
        if dequantize is None or not dequantize.attributes.get_int("block_size", 0):
            continue
        table = dequantize.inputs[0]
        if node.attributes.get_int("axis", 0) != 0 or table is None or table.const_value is None:
            continue
        if table.dtype in HALF_BYTES:
            new = _lookup(node, dequantize)
            model.opset_imports.setdefault(MICROSOFT, 1)
        else:
            new = _rows(node, dequantize, names)
        old, result = node.outputs[0], new.outputs[0]
        name = old.name
        result.type, result.shape = old.type, old.shape
        put_in_front(node, new)
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        result.name = name
        if not dequantize.outputs[0].uses():
            model.graph.remove(dequantize, safe=True)


def _lookup(node: ir.Node, dequantize: ir.Node) -> ir.Node:
    integers, scale, *zeros = dequantize.inputs
    attributes = {
        "gather_axis": 0,
        "quantize_axis": 1,
        "block_size": dequantize.attributes.get_int("block_size", 0),
        "bits": 4,
    }
    inputs = [integers, node.inputs[1], scale, *zeros]
    new = ir.node(LOOKUP, inputs, attributes, domain=MICROSOFT, name=node.name)
    new.metadata_props.update(node.metadata_props)
    return new


def _rows(node: ir.Node, dequantize: ir.Node, names: FreshNames) -> ir.Node:
    """Return the product of rows of integers and of their scales, without a DequantizeLinear.

    ONNX Runtime would take one for that of an activation, and the layer that reads it for an integer one.
    """
    integers, scale, *zeros = dequantize.inputs
    size, graph = dequantize.attributes.get_int("block_size", 0), node.graph
    assert isinstance(graph, ir.Graph) and integers is not None and integers.shape is not None  # noqa: S101
    length = int(integers.shape.numpy()[1])
    block = add_initializer(graph, names.claim(f"{node.name}.block"), np.arange(length) // size)

    def take(table: ir.Value | None, part: str) -> ir.Value:
        return _put(node, ir.node("Gather", [table, node.inputs[1]], {"axis": 0}, name=names.claim(part)))

    def as_floats(value: ir.Value, part: str) -> ir.Value:
        return _put(node, make_cast(value, ir.DataType.FLOAT, names.claim(part)))

    def spread(value: ir.Value, part: str) -> ir.Value:
        return _put(node, ir.node("Gather", [value, block], {"axis": -1}, name=names.claim(part)))

    values = as_floats(take(integers, f"{node.name}/rows"), f"{node.name}/Cast")
    if zeros:
        zero = as_floats(take(zeros[0], f"{node.name}/zeros"), f"{node.name}/zeros/Cast")
        center = spread(zero, f"{node.name}/zeros/spread")
        values = _put(node, ir.node("Sub", [values, center], name=names.claim(f"{node.name}/Sub")))
    steps = spread(take(scale, f"{node.name}/scales"), f"{node.name}/scales/spread")
    return ir.node("Mul", [values, steps], name=node.name)


def _put(reader: ir.Node, node: ir.Node) -> ir.Value:
    node.outputs[0].name = f"{node.name}{RESULT}"
    put_in_front(reader, node)
    return node.outputs[0]
