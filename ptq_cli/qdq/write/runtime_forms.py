"""Passes: a quantized graph as ONNX Runtime's kernels of blocks, and as devices' compilers, take it.

Requires, of each: what compares the graph with the float one layer by layer, as a recovery does, is done.
Ensures: the graph computes what it did, and the last of new operators has the name of the one replaced.

Source:
    ONNX Runtime's builders of operators for QNN, which refuse or misread the forms that are replaced here;
    what OpenVINO computes of padding (``tests/properties/test_pools_and_chains.py``), and of open sizes.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import (
    constant_shape,
    every_node,
    input_at,
    register_constant,
    remove_unused,
    sole_reader,
)
from ptq_cli.models.pair_operators import CLAMPS, MICROSOFT, QUANTIZE, dequantized_by, is_pair_node
from ptq_cli.plan.graph_questions import clip_bound
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, own_graph, put_in_front, take_place

_WEIGHT = 1  # input of a Gemm or MatMul
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
    dequantize = dequantized_by(input_at(node, _WEIGHT))
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
        dequantize = dequantized_by(input_at(node, _WEIGHT)) if is_turned else None
        if dequantize is None or dequantize.attributes.get_int("axis", 1) != 1:
            continue
        attributes = {"axis": 0, "block_size": dequantize.attributes.get_int("block_size", 0)}
        values = [_turned(new, value, dequantize) for value in dequantize.inputs if value is not None]
        name = new.claim(f"{dequantize.name}.turned")
        given: dict[str, Any] = {"dtype": ir.DataType.FLOAT, "shape": values[0].shape}
        restored = new_node(dequantize.op_type, values, name, attributes=attributes, **given)
        node.replace_input_with(_WEIGHT, put_in_front(node, restored))
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

    Source: ONNX Runtime's ContribOperators.md, com.microsoft.GatherBlockQuantized.
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
    """Write the product of rows of integers and of their scales, without a DequantizeLinear."""
    # ONNX Runtime would take one for that of an activation, and the layer that reads it for an integer one.
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


_MIDDLE = 128  # zero point of a symmetric range of uint8
_BIAS = 2  # input of a Conv or Gemm
TINY_BIAS = 1e-30  # changes no float that it is added to, but 0; OpenVINO leaves out a bias of zeros


def dequantize_bytes(model: ir.Model) -> None:
    """Write each Cast of bytes to floats as a DequantizeLinear with the scale 1, which computes the same."""
    new = NewNodes(model.graph)
    for node in list(model.graph):
        source = input_at(node, 0)
        if node.op_type != "Cast" or source is None or source.dtype != ir.DataType.UINT8:
            continue
        if node.outputs[0].dtype == ir.DataType.FLOAT:
            scale = new.constant(f"{node.name}.scale", np.asarray(1, np.float32))
            zero_point = new.constant(f"{node.name}.zero_point", np.asarray(0, np.uint8))
            take_place(node, new.dequantize(source, (scale, zero_point), node.name or ""))


def convert_types(model: ir.Model) -> None:
    """Let each operator read integers of the type that it makes: a pair converts those of another.

    Ensures: to more bits nothing is lost, for the coarser grid is a part of the finer one with the same ends.
    """
    new = NewNodes(model.graph)
    made: dict[tuple[ir.Value, str], ir.Value] = {}
    for node in [item for item in every_node(model.graph) if not is_pair_node(item)]:
        grids = {index: grid for index in range(len(node.inputs)) if (grid := _read(node, index)) is not None}
        read = (grid.integers for grid in grids.values())
        wanted = _made(node) or max(read, key=lambda item: item.bits, default=None)
        for index, grid in grids.items():
            value = node.inputs[index]
            if wanted is None or value is None or grid.format.name == wanted.name:
                continue
            key = (value, wanted.name)
            if key not in made:
                made[key] = _converted(new, node, value, grid, wanted)
            node.replace_input_with(index, made[key])
            if index == 0:
                _restore_bias(new, node)
    remove_unused(model)


def _read(node: ir.Node, index: int) -> QuantParameters | None:
    """Return the grid of an activation that a node reads; None of a constant and of floats."""
    dequantize = dequantized_by(node.inputs[index])
    source = dequantize.inputs[0] if dequantize is not None else None
    if dequantize is None or source is None or source.producer() is None:
        return None
    return grid_of(dequantize).parameters


def _made(node: ir.Node) -> IntegerFormat | None:
    """Return the integers of the pair behind a node, or behind the Relu or Clip that folds into that."""
    reader = sole_reader(node.outputs[0])
    if reader is not None and reader.op_type in CLAMPS:
        reader = sole_reader(reader.outputs[0])
    parameters = grid_of(reader).parameters if reader is not None and reader.op_type == QUANTIZE else None
    return parameters.integers if parameters is not None else None


def _converted(
    new: NewNodes, node: ir.Node, value: ir.Value, grid: QuantParameters, format: IntegerFormat
) -> ir.Value:
    """Insert a pair before a node that makes integers of another type of a value, and return its result."""
    zero_point, scale_of_one = int(grid.zero_point), float(grid.scale)
    low, high = ((end - zero_point) * scale_of_one for end in (grid.integers.qmin, grid.integers.qmax))
    found = parameters_from_range(low, high, format)
    prefix = f"{value.name}.{format.name}"
    scale = new.constant(f"{prefix}.scale", np.asarray(found.scale, np.float32))
    zeros = new.constant(f"{prefix}.zero_point", found.zero_point.astype(format.storage))
    return put_in_front(node, *new.pair(value, (scale, zeros), prefix))


def _restore_bias(new: NewNodes, node: ir.Node) -> None:
    """Store an int32 bias as floats: its scale was made for the grid that the input had before."""
    value = input_at(node, _BIAS) if node.op_type in ("Conv", "ConvTranspose", "Gemm") else None
    dequantize = dequantized_by(value)
    source = dequantize.inputs[0] if dequantize is not None else None
    if dequantize is None or source is None or source.const_value is None:
        return
    scale = grid_of(dequantize).scale
    if scale is not None:
        bias = source.const_value.numpy().astype(np.float64) * scale.astype(np.float64)
        node.replace_input_with(_BIAS, new.constant(f"{node.name}.bias.float", bias.astype(np.float32)))


def shift_bytes(model: ir.Model) -> None:
    """Write pairs of uint8 around 128, which a model brought, as int8 around 0: they hold the same numbers.

    A QuantizeLinear stays whose integers something else than such a DequantizeLinear reads.
    """
    new, shifted = NewNodes(model.graph), dict[ir.Value, ir.Value]()

    def signed(value: ir.Value) -> ir.Value:
        if value.const_value is not None and value not in shifted:
            integers = (value.const_value.numpy().astype(np.int16) - _MIDDLE).astype(np.int8)
            shifted[value] = new.constant(f"{value.name}.int8", integers)
        return shifted[value]

    around = [node for node in every_node(model.graph) if is_pair_node(node) and _is_around_middle(node)]
    for node in around:
        source, result, readers = node.inputs[0], node.outputs[0], list[ir.Node]()
        if node.op_type == QUANTIZE:
            readers = [use.node for use in result.uses()]
            if result.is_graph_output() or not all(reader in around for reader in readers):
                continue
            result.type = ir.TensorType(ir.DataType.INT8)
            node.attributes.pop("output_dtype", None)
        elif source is not None and source.const_value is not None:
            node.replace_input_with(0, signed(source))
        else:
            continue
        for item in (node, *readers):
            if (zero := item.inputs[2]) is not None:
                item.replace_input_with(2, signed(zero))
    if around:
        remove_unused(model)


def _is_around_middle(node: ir.Node) -> bool:
    zero = input_at(node, 2)
    tensor = zero.const_value if zero is not None else None
    return (
        tensor is not None and tensor.dtype == ir.DataType.UINT8 and bool(np.all(tensor.numpy() == _MIDDLE))
    )


def give_biases(model: ir.Model, target: Target) -> None:
    """Give an integer operator a tiny bias where the target's runtime needs one (``bias_for_floats``)."""
    if not any(rule.bias_for_floats for rule in target.op.values()):
        return
    new = NewNodes(model.graph)
    for node in list(every_node(model.graph)):
        rule = target.op.get(node.op_type)
        if rule is None or not rule.bias_for_floats or node.domain:
            continue
        weight, result = dequantized_by(input_at(node, 1)), node.outputs[0]
        is_quantized = not result.is_graph_output() and {use.node.op_type for use in result.uses()} == {
            QUANTIZE
        }
        integers = constant_shape(weight.inputs[0]) if weight is not None else ()
        is_integer = bool(integers) and dequantized_by(node.inputs[0]) is not None
        if is_integer and not is_quantized and _adds_nothing(input_at(node, _BIAS)):
            bias = np.full(integers[rule.weight_axis], TINY_BIAS, np.float32)
            node.resize_inputs(_BIAS + 1)
            node.replace_input_with(_BIAS, new.constant(f"{node.name}.bias", bias))
    remove_unused(model)


def _adds_nothing(bias: ir.Value | None) -> bool:
    """Tell whether a bias is left out, or all 0."""
    pair = dequantized_by(bias)
    stored = pair.inputs[0] if pair is not None else bias
    tensor = stored.const_value if stored is not None else None
    return bias is None or (tensor is not None and not np.any(tensor.numpy()))
