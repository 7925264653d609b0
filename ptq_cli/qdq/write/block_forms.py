"""Passes: what stands around weights and tables in blocks is written as ONNX Runtime 1.31 has kernels for.

Requires, of each: what compares the graph with the float one layer by layer, as a recovery does, is done.
Ensures: the graph computes what it did, and the last of new operators has the name of the one replaced.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import every_node, input_at, register_constant
from ptq_cli.models.integer_operators import MICROSOFT
from ptq_cli.models.pair_operators import CLAMPS, dequantized_by
from ptq_cli.plan.graph_questions import clip_bound
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, own_graph, put_in_front, take_place

WEIGHT = 1  # input of a Gemm or MatMul
LOOKUP = "GatherBlockQuantized"
HALF_BYTES = (ir.DataType.INT4, ir.DataType.UINT4)


def write_clamps_of_blocks(model: ir.Model) -> None:
    """Write each Relu and Clip behind a layer with a weight in blocks, or behind its bias, as Max and Min.

    ONNX Runtime takes a Relu or Clip for a part of the operator before it, looks for a QuantizeLinear behind
    the two, and without one leaves the DequantizeLinear of the weight in the graph. A Clip with a computed
    bound stays.
    """
    new = NewNodes(model.graph)
    for node in list(every_node(model.graph)):
        if node.op_type not in CLAMPS or node.domain or not _follows_blocks(node):
            continue
        bounds = _bounds(node)
        value, result = node.inputs[0], node.outputs[0]
        for index, (operator, bound) in enumerate(bounds, start=1):
            name = node.name if index == len(bounds) else new.claim(f"{node.name}/{operator}")
            constant = new.constant(f"{node.name}.bound", np.array(bound, np.float32))
            made = new_node(operator, [value, constant], name, dtype=result.dtype, shape=result.shape)
            if index == len(bounds):
                take_place(node, made)
            else:
                value = put_in_front(node, made)


def _follows_blocks(node: ir.Node) -> bool:
    source = node.inputs[0]
    producer = source.producer() if source is not None else None
    if producer is not None and producer.op_type == "Add":
        return any(_reads_blocks(value.producer()) for value in producer.inputs if value is not None)
    return _reads_blocks(producer)


def _reads_blocks(node: ir.Node | None) -> bool:
    if node is None or node.op_type not in ("MatMul", "Gemm"):
        return False
    dequantize = dequantized_by(input_at(node, WEIGHT))
    return dequantize is not None and bool(dequantize.attributes.get_int("block_size", 0))


def _bounds(node: ir.Node) -> list[tuple[str, float]]:
    """Return the operators that clamp, with their constants; none if a bound is computed."""
    if node.op_type == "Relu":
        return [("Max", 0.0)]
    given = [(operator, index) for operator, index in (("Max", 1), ("Min", 2)) if input_at(node, index)]
    found = [(operator, bound) for operator, index in given if (bound := clip_bound(node, index)) is not None]
    return found if len(found) == len(given) else []


def turn_gemms_of_blocks(model: ir.Model, layers: Collection[str]) -> int:
    """Let Gemms with ``transB`` and a weight in blocks read it turned, and return how many.

    ONNX Runtime merges a DequantizeLinear of blocks along axis 0 and a Gemm into MatMulNBits, and leaves one
    along axis 1 with ``transB``, as PyTorch's exporters write it, in the graph: the weight would be restored
    to floats at each run. Integers, scales and zero points that nobody else reads are stored turned; those of
    a table of embeddings stay, with a Transpose behind each, which a runtime computes once, as it loads.
    """
    count, new = 0, NewNodes(model.graph)
    for node in [item for item in every_node(model.graph) if item.name in layers]:
        is_turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        dequantize = dequantized_by(input_at(node, WEIGHT)) if is_turned else None
        if dequantize is None or dequantize.attributes.get_int("axis", 1) != 1:
            continue
        attributes = {"axis": 0, "block_size": dequantize.attributes.get_int("block_size", 0)}
        values = [_turned(new, value, dequantize) for value in dequantize.inputs if value is not None]
        name = new.claim(f"{dequantize.name}.turned")
        given: dict[str, Any] = {"dtype": ir.DataType.FLOAT, "shape": values[0].shape}
        restored = new_node(dequantize.op_type, values, name, attributes=attributes, **given)
        node.replace_input_with(WEIGHT, put_in_front(node, restored))
        node.attributes.pop("transB")
        _drop(model.graph, dequantize)
        count += 1
    return count


def _turned(new: NewNodes, value: ir.Value, reader: ir.Node) -> ir.Value:
    tensor, name = value.const_value, new.claim(f"{value.name}.turned")
    if tensor is None or any(node is not reader for node, _ in value.uses()):
        perm = {"perm": [1, 0]}
        node = new_node("Transpose", [value], f"{name}/Transpose", attributes=perm, dtype=value.dtype)
        return put_in_front(reader, node)
    return register_constant(new.graph, moved_tensor(tensor, np.transpose, name))


def _drop(graph: ir.Graph, dequantize: ir.Node) -> None:
    """Remove a DequantizeLinear that nobody reads, and the constants that only it has read."""
    if dequantize.outputs[0].uses():
        return
    constants = [value for value in dequantize.inputs if value is not None]
    own_graph(dequantize).remove(dequantize, safe=True)
    for value in constants:
        if value.name in graph.initializers and not value.uses():
            del graph.initializers[value.name or ""]


def write_table_lookups(model: ir.Model) -> None:
    """Let Gathers from a table in blocks take rows of integers, and make floats of those rows alone.

    Of 4 bits it becomes GatherBlockQuantized, ONNX Runtime's own operator; of 8 bits the integers and the
    scales are gathered and multiplied. What is computed is the same, bit for bit.

    Source:
        ONNX Runtime's ContribOperators.md, com.microsoft.GatherBlockQuantized.
    """
    new = NewNodes(model.graph)
    for node in list(model.graph):
        dequantize = dequantized_by(node.inputs[0]) if node.op_type == "Gather" and node.inputs else None
        size = dequantize.attributes.get_int("block_size", 0) if dequantize is not None else 0
        table = dequantize.inputs[0] if dequantize is not None and size else None
        if dequantize is None or table is None or table.const_value is None:
            continue
        if node.attributes.get_int("axis", 0) != 0:
            continue
        if table.dtype in HALF_BYTES:
            attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": size, "bits": 4}
            inputs = [table, node.inputs[1], *dequantize.inputs[1:]]
            take_place(node, ir.node(LOOKUP, inputs, attributes, domain=MICROSOFT, name=node.name))
            model.opset_imports.setdefault(MICROSOFT, 1)
        else:
            _write_rows(new, node, dequantize, size)
        if not dequantize.outputs[0].uses():
            model.graph.remove(dequantize, safe=True)


def _write_rows(new: NewNodes, node: ir.Node, dequantize: ir.Node, size: int) -> None:
    """Write the product of rows of integers and of their scales, without a DequantizeLinear.

    ONNX Runtime would take one for that of an activation, and the layer that reads it for an integer one.
    """
    integers, scale, *zeros = dequantize.inputs
    assert integers is not None and integers.shape is not None  # noqa: S101
    block = new.constant(f"{node.name}.block", np.arange(int(integers.shape.numpy()[1])) // size)

    def put(op_type: str, inputs: list[ir.Value | None], part: str, **attributes: int) -> ir.Value:
        return new.put(node, op_type, inputs, f"{node.name}/{part}", attributes=attributes)

    def floats(table: ir.Value | None, rows: str, part: str) -> ir.Value:
        taken = put("Gather", [table, node.inputs[1]], rows, axis=0)
        name, to = new.claim(f"{node.name}/{part}"), int(ir.DataType.FLOAT)
        cast = new_node("Cast", [taken], name, attributes={"to": to}, dtype=ir.DataType.FLOAT)
        return put_in_front(node, cast)

    values = floats(integers, "rows", "Cast")
    if zeros:
        center = put("Gather", [floats(zeros[0], "zeros", "zeros/Cast"), block], "zeros/spread", axis=-1)
        values = put("Sub", [values, center], "Sub")
    scales = put("Gather", [scale, node.inputs[1]], "scales", axis=0)
    steps = put("Gather", [scales, block], "scales/spread", axis=-1)
    take_place(node, ir.node("Mul", [values, steps], name=node.name))
