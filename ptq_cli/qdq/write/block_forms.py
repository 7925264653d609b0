"""Graph around weights in blocks, as ONNX Runtime's kernels need it."""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import RESULT, FreshNames, every_node, input_at, register_constant
from ptq_cli.models.integer_operators import MICROSOFT
from ptq_cli.models.pair_operators import CLAMPS, dequantized_by
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    make_cast,
    make_dequantize,
    put_in_front,
    take_place,
)

BOUNDS = (("Max", 1), ("Min", 2))
"""The operator for each bound of a Clip, by its input."""


def write_clamps_of_blocks(model: ir.Model) -> None:
    """Replace each Relu and Clip that reads a layer with a weight in blocks, or the bias behind one."""
    names = FreshNames.of(model.graph)
    for node in list(every_node(model.graph)):
        if node.op_type not in CLAMPS or node.domain or not _follows_blocks(node):
            continue
        bounds = _bounds(node)
        if not bounds:
            continue
        value, made = node.inputs[0], []
        for index, (operator, bound) in enumerate(bounds):
            is_last = index == len(bounds) - 1
            name = node.name if is_last else names.claim(f"{node.name}/{operator}")
            constant = add_initializer(
                model.graph, names.claim(f"{node.name}.bound"), np.array(bound, np.float32)
            )
            new = ir.node(operator, [value, constant], name=name)
            value = new.outputs[0]
            value.name = f"{name}{RESULT}"
            value.type, value.shape = node.outputs[0].type, node.outputs[0].shape
            made.append(new)
        put_in_front(node, *made[:-1])
        take_place(node, made[-1])


def _follows_blocks(node: ir.Node) -> bool:
    source = node.inputs[0]
    producer = source.producer() if source is not None else None
    if producer is not None and producer.op_type == "Add":
        before = [value.producer() for value in producer.inputs if value is not None]
        return any(_reads_blocks(item) for item in before)
    return _reads_blocks(producer)


def _reads_blocks(node: ir.Node | None) -> bool:
    if node is None or node.op_type not in ("MatMul", "Gemm"):
        return False
    dequantize = dequantized_by(input_at(node, 1))
    return dequantize is not None and bool(dequantize.attributes.get_int("block_size", 0))


def _bounds(node: ir.Node) -> list[tuple[str, float]]:
    """Return the operators that clamp, with their constants; none if a bound is computed."""
    if node.op_type == "Relu":
        return [("Max", 0.0)]
    found = []
    for operator, index in BOUNDS:
        value = input_at(node, index)
        if value is not None and value.const_value is None:
            return []
        if value is not None and value.const_value is not None:
            found.append((operator, float(value.const_value.numpy().item())))
    return found


WEIGHT = 1
"""The input of a Gemm."""


def turn_gemms_of_blocks(model: ir.Model, layers: Collection[str]) -> int:
    """Turn the weights of Gemms, and return how many."""
    count, names = 0, FreshNames.of(model.graph)
    for node in [item for item in every_node(model.graph) if item.name in layers]:
        is_turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        dequantize = dequantized_by(input_at(node, WEIGHT)) if is_turned else None
        if dequantize is None or dequantize.attributes.get_int("axis", 1) != 1:
            continue
        size = dequantize.attributes.get_int("block_size", 0)
        integers, scale, *zeros = [
            _turned(model.graph, value, dequantize, names) for value in dequantize.inputs if value is not None
        ]
        name = names.claim(f"{dequantize.name}.turned")
        new = make_dequantize(integers, scale, zeros[0] if zeros else None, name, 0, size)
        put_in_front(node, new)
        node.replace_input_with(WEIGHT, new.outputs[0])
        node.attributes.pop("transB")
        _drop(model.graph, dequantize)
        count += 1
    return count


def _turned(graph: ir.Graph, value: ir.Value, reader: ir.Node, names: FreshNames) -> ir.Value:
    tensor, name = value.const_value, names.claim(f"{value.name}.turned")
    if tensor is None or any(node is not reader for node, _ in value.uses()):
        node = ir.node("Transpose", [value], {"perm": [1, 0]}, name=f"{name}/Transpose")
        output = node.outputs[0]
        output.name, output.type = f"{node.name}{RESULT}", value.type
        put_in_front(reader, node)
        return output
    return register_constant(graph, moved_tensor(tensor, np.transpose, name))


def _drop(graph: ir.Graph, dequantize: ir.Node) -> None:
    """Remove a DequantizeLinear that nobody reads, and the constants that only it has read."""
    if dequantize.outputs[0].uses() or not isinstance(dequantize.graph, ir.Graph):
        return
    constants = [value for value in dequantize.inputs if value is not None]
    dequantize.graph.remove(dequantize, safe=True)
    for value in constants:
        if value.name in graph.initializers and not value.uses():
            del graph.initializers[value.name or ""]


LOOKUP = "GatherBlockQuantized"


HALF_BYTES = (ir.DataType.INT4, ir.DataType.UINT4)


def write_table_lookups(model: ir.Model) -> None:
    """Replace each Gather of rows from a table in blocks."""
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
        take_place(node, new)
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
    return ir.node(LOOKUP, inputs, attributes, domain=MICROSOFT, name=node.name)


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
