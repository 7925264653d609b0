"""Passes: a quantized graph as a device's compiler takes it, where others are less strict.

Source:
    ONNX Runtime's builders of operators for QNN, which refuse or misread the forms that are replaced here;
    what OpenVINO computes of padding (``tests/properties/test_pools_and_chains.py``), and of open sizes.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, remove_unused, sole_reader
from ptq_cli.models.pair_operators import CLAMPS, QUANTIZE, dequantized_by, is_pair_node
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.new_nodes import NewNodes, put_in_front, take_place

MIDDLE = 128  # zero point of a symmetric range of uint8
BIAS = 2  # input of a Conv or Gemm
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
    value = input_at(node, BIAS) if node.op_type in ("Conv", "ConvTranspose", "Gemm") else None
    dequantize = dequantized_by(value)
    source = dequantize.inputs[0] if dequantize is not None else None
    if dequantize is None or source is None or source.const_value is None:
        return
    scale = grid_of(dequantize).scale
    if scale is not None:
        bias = source.const_value.numpy().astype(np.float64) * scale.astype(np.float64)
        node.replace_input_with(BIAS, new.constant(f"{node.name}.bias.float", bias.astype(np.float32)))


def shift_bytes(model: ir.Model) -> None:
    """Write pairs of uint8 around 128, which a model brought, as int8 around 0: they hold the same numbers.

    A QuantizeLinear stays whose integers something else than such a DequantizeLinear reads.
    """
    new, shifted = NewNodes(model.graph), dict[ir.Value, ir.Value]()

    def signed(value: ir.Value) -> ir.Value:
        if value.const_value is not None and value not in shifted:
            integers = (value.const_value.numpy().astype(np.int16) - MIDDLE).astype(np.int8)
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
    return tensor is not None and tensor.dtype == ir.DataType.UINT8 and bool(np.all(tensor.numpy() == MIDDLE))


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
        if is_integer and not is_quantized and _adds_nothing(input_at(node, BIAS)):
            bias = np.full(integers[rule.weight_axis], TINY_BIAS, np.float32)
            node.resize_inputs(BIAS + 1)
            node.replace_input_with(BIAS, new.constant(f"{node.name}.bias", bias))
    remove_unused(model)


def _adds_nothing(bias: ir.Value | None) -> bool:
    """Tell whether a bias is left out, or all 0."""
    pair = dequantized_by(bias)
    stored = pair.inputs[0] if pair is not None else bias
    tensor = stored.const_value if stored is not None else None
    return bias is None or (tensor is not None and not np.any(tensor.numpy()))
