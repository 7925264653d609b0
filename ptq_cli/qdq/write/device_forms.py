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
from ptq_cli.models.names import RESULT, FreshNames
from ptq_cli.models.pair_operators import CLAMPS, QUANTIZE, dequantized_by, is_pair_node
from ptq_cli.plan.graph_questions import moved_to
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    make_dequantize,
    make_quantize,
    put_in_front,
    take_place,
)

MIDDLE = 128
"""Of uint8: the zero point of a symmetric range."""
BIAS = 2
"""The input of a Conv or Gemm that holds it."""


def dequantize_bytes(model: ir.Model) -> None:
    """Write each Cast of bytes to floats as a DequantizeLinear with the scale 1, which computes the same."""
    names = FreshNames.of(model.graph)
    for node in list(model.graph):
        source = input_at(node, 0)
        if node.op_type != "Cast" or source is None or source.dtype != ir.DataType.UINT8:
            continue
        if node.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        scale = add_initializer(model.graph, names.claim(f"{node.name}.scale"), np.asarray(1, np.float32))
        zero_point = add_initializer(
            model.graph, names.claim(f"{node.name}.zero_point"), np.asarray(0, np.uint8)
        )
        take_place(
            node, make_dequantize(source, scale, zero_point, names.claim(f"{node.name}/DequantizeLinear"))
        )


def convert_types(model: ir.Model) -> None:
    """Let each operator read integers of the type that it makes: a pair converts those of another.

    Ensures: to more bits nothing is lost, for the coarser grid is a part of the finer one with the same ends.
    """
    names = FreshNames.of(model.graph)
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
                made[key] = _converted(model.graph, node, value, grid, wanted, names)
            node.replace_input_with(index, made[key])
            if index == 0:
                _restore_bias(model.graph, node, names)
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
    graph: ir.Graph,
    node: ir.Node,
    value: ir.Value,
    grid: QuantParameters,
    format: IntegerFormat,
    names: FreshNames,
) -> ir.Value:
    """Insert a pair before a node that makes integers of another type of a value, and return its result."""
    zero_point, scale_of_one = int(grid.zero_point), float(grid.scale)
    low, high = ((end - zero_point) * scale_of_one for end in (grid.integers.qmin, grid.integers.qmax))
    found = parameters_from_range(low, high, format)
    prefix = f"{value.name}.{format.name}"
    scale = add_initializer(graph, names.claim(f"{prefix}.scale"), np.asarray(found.scale, np.float32))
    zeros = add_initializer(
        graph, names.claim(f"{prefix}.zero_point"), found.zero_point.astype(format.storage)
    )
    quantize = make_quantize(value, scale, zeros, names.claim(f"{prefix}/QuantizeLinear"))
    dequantize = make_dequantize(quantize.outputs[0], scale, zeros, names.claim(f"{prefix}/DequantizeLinear"))
    put_in_front(node, quantize, dequantize)
    return dequantize.outputs[0]


def _restore_bias(graph: ir.Graph, node: ir.Node, names: FreshNames) -> None:
    """Store an int32 bias as floats: its scale was made for the grid that the input had before."""
    value = input_at(node, BIAS) if node.op_type in ("Conv", "ConvTranspose", "Gemm") else None
    dequantize = dequantized_by(value)
    stored = (
        dequantize.inputs[0].const_value
        if dequantize is not None and dequantize.inputs[0] is not None
        else None
    )
    grid = grid_of(dequantize) if dequantize is not None else None
    if stored is None or grid is None or grid.scale is None:
        return
    bias = stored.numpy().astype(np.float64) * grid.scale.astype(np.float64)
    made = add_initializer(graph, names.claim(f"{node.name}.bias.float"), bias.astype(np.float32))
    node.replace_input_with(BIAS, made)


def shift_bytes(model: ir.Model) -> None:
    """Write pairs of uint8 around 128, which a model brought, as int8 around 0: they hold the same numbers.

    A QuantizeLinear stays whose integers something else than such a DequantizeLinear reads.
    """
    names, shifted = FreshNames.of(model.graph), dict[ir.Value, ir.Value]()

    def signed(value: ir.Value) -> ir.Value:
        if value.const_value is not None and value not in shifted:
            integers = (value.const_value.numpy().astype(np.int16) - MIDDLE).astype(np.int8)
            shifted[value] = add_initializer(model.graph, names.claim(f"{value.name}.int8"), integers)
        return shifted[value]

    around = [node for node in every_node(model.graph) if is_pair_node(node) and _is_around_middle(node)]
    for node in around:
        source, result = node.inputs[0], node.outputs[0]
        if node.op_type == QUANTIZE:
            readers = [use.node for use in result.uses()]
            if result.is_graph_output() or not all(reader in around for reader in readers):
                continue
            result.type = ir.TensorType(ir.DataType.INT8)
            node.attributes.pop("output_dtype", None)
        elif source is not None and source.const_value is not None:
            readers = list[ir.Node]()
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


def pad_apart(model: ir.Model, target: Target) -> None:
    """Write zeros that count in a mean as a Pad where the target's own padding is wrong (``pads_apart``).

    Requires: the pairs are final. Ensures: the same results to the bit. Behind integers the Pad has a pair of
    their grid, without which OpenVINO would take it back. Padding of unknown sizes stays.
    """
    names = FreshNames.of(model.graph)
    for node in list(every_node(model.graph)):
        rule, x = target.op.get(node.op_type), input_at(node, 0)
        pads = _counted_pads(node) if rule is not None and rule.pads_apart and not node.domain else None
        if pads is None or x is None:
            continue
        before = next(filter(None, map(dequantized_by, moved_to(x, target))), None)
        is_shifted = before is not None and bool(np.any(grid_of(before).zero_point != 0))
        if not is_shifted and not node.attributes.get_int("ceil_mode", 0):
            continue
        half = len(pads) // 2
        # Integers that are padded along one axis alone OpenVINO restores wrongly: here a channel is added.
        is_one_axis = is_shifted and sum(map(any, zip(pads[:half], pads[half:], strict=True))) == 1
        around = np.asarray([0, 0, *pads[:half], 0, int(is_one_axis), *pads[half:]], np.int64)
        counts = add_initializer(model.graph, names.claim(f"{node.name}.pads"), around)
        pad = ir.node("Pad", [x, counts], name=names.claim(f"{node.name}/Pad"))
        value = pad.outputs[0]
        value.name, value.type = names.claim(f"{pad.name}{RESULT}"), x.type
        put_in_front(node, pad)
        if before is not None:
            value = _restored(value, before, names, node)
        node.replace_input_with(0, value)
        node.attributes.add(ir.AttrInt64s("pads", [0] * len(pads)))
        node.attributes.pop("auto_pad", None)
        if is_one_axis:
            _drop_last_channel(model.graph, node, names)


def _drop_last_channel(graph: ir.Graph, node: ir.Node, names: FreshNames) -> None:
    """Let whatever reads a node read all channels of its result but the last."""
    if not isinstance(node.graph, ir.Graph):
        raise TypeError("a prepared model has no functions")
    result = node.outputs[0]
    bounds = [
        add_initializer(graph, names.claim(f"{node.name}.{what}"), np.asarray([number], np.int64))
        for what, number in (("first", 0), ("end", -1), ("axis", 1))
    ]
    part = ir.node("Slice", [result, *bounds], name=names.claim(f"{node.name}/Slice"))
    ir.convenience.replace_all_uses_with(result, part.outputs[0], replace_graph_outputs=True)
    part.replace_input_with(0, result)
    part.outputs[0].name, result.name = result.name, names.claim(f"{node.name}/channels{RESULT}")
    part.outputs[0].type, part.outputs[0].shape, result.shape = result.type, result.shape, None
    node.graph.insert_after(node, part)


TINY_BIAS = 1e-30
"""No float that it is added to changes, but 0; OpenVINO leaves out a bias of zeros."""


def give_biases(model: ir.Model, target: Target) -> None:
    """Give an integer operator a tiny bias where the target's runtime needs one (``bias_for_floats``)."""
    if not any(rule.bias_for_floats for rule in target.op.values()):
        return
    names = FreshNames.of(model.graph)
    for node in list(every_node(model.graph)):
        rule = target.op.get(node.op_type)
        if rule is None or not rule.bias_for_floats or node.domain:
            continue
        weight = dequantized_by(input_at(node, 1))
        is_integer = weight is not None and dequantized_by(node.inputs[0]) is not None
        readers = [use.node.op_type for use in node.outputs[0].uses()]
        is_quantized = not node.outputs[0].is_graph_output() and set(readers) == {QUANTIZE}
        integers = constant_shape(weight.inputs[0]) if weight is not None else ()
        if not is_integer or is_quantized or not integers or not _adds_nothing(input_at(node, BIAS)):
            continue
        bias = np.full(integers[rule.weight_axis], TINY_BIAS, np.float32)
        node.resize_inputs(BIAS + 1)
        node.replace_input_with(BIAS, add_initializer(model.graph, names.claim(f"{node.name}.bias"), bias))
    remove_unused(model)


def _adds_nothing(bias: ir.Value | None) -> bool:
    """Tell whether a bias is left out, or all 0."""
    pair = dequantized_by(bias)
    stored = pair.inputs[0] if pair is not None else bias
    tensor = stored.const_value if stored is not None else None
    return bias is None or (tensor is not None and not np.any(tensor.numpy()))


def _restored(value: ir.Value, before: ir.Node, names: FreshNames, reader: ir.Node) -> ir.Value:
    """Return a value behind a pair of the grid of a DequantizeLinear."""
    scale, zero_point = before.inputs[1], input_at(before, 2)
    if scale is None or zero_point is None:
        raise RuntimeError(f"'{before.name}' has no zero point")
    name = value.name or ""
    quantize = make_quantize(value, scale, zero_point, names.claim(f"{name}/QuantizeLinear"))
    restore = make_dequantize(quantize.outputs[0], scale, zero_point, names.claim(f"{name}/DequantizeLinear"))
    put_in_front(reader, quantize, restore)
    return restore.outputs[0]


def _counted_pads(node: ir.Node) -> list[int] | None:
    """Return the zeros that count in a mean before and behind each axis; None without, or if unknown."""
    size = list(node.attributes.get_ints("kernel_shape", ()))
    if not node.attributes.get_int("count_include_pad", 0):
        return None
    strides = list(node.attributes.get_ints("strides", [1] * len(size)))
    pads = list(node.attributes.get_ints("pads", [0] * (2 * len(size))))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        found = _same_pads(node.inputs[0], size, strides, is_upper=auto == "SAME_UPPER")
        pads = found if found is not None and not _is_dilated(node) else []
    elif auto == "VALID":
        return None
    return pads if any(pads) and _keeps_windows(node, pads) else None


def _keeps_windows(node: ir.Node, pads: list[int]) -> bool:
    """Tell whether ``ceil_mode`` is known to give the same windows behind a Pad.

    ONNX drops a window that begins in the padding behind, which a Pad would keep.
    """
    if not node.attributes.get_int("ceil_mode", 0):
        return True
    size, x = list(node.attributes.get_ints("kernel_shape", ())), node.inputs[0]
    shape = list(x.shape)[2:] if x is not None and x.shape is not None else [None] * len(size)
    for axis, (whole, width) in enumerate(zip(shape, size, strict=True)):
        step = node.attributes.get_ints("strides", [1] * len(size))[axis]
        extent = (width - 1) * node.attributes.get_ints("dilations", [1] * len(size))[axis] + 1
        begin, end = pads[axis], pads[axis + len(size)]
        if step <= extent - end:
            continue  # Not even the last window begins there, whatever the size.
        if not isinstance(whole, int) or -(-(whole + begin + end - extent) // step) * step >= whole + begin:
            return False
    return True


def _is_dilated(node: ir.Node) -> bool:
    return any(step != 1 for step in node.attributes.get_ints("dilations", ()))


def _same_pads(
    x: ir.Value | None, size: list[int], strides: list[int], *, is_upper: bool
) -> list[int] | None:
    """Return the pads that ``auto_pad`` stands for; None where they depend on sizes that are not known."""
    shape = list(x.shape)[2:] if x is not None and x.shape is not None else [None] * len(size)
    begins, ends = [], []
    for whole, width, step in zip(shape, size, strides, strict=True):
        # With steps of 1 they are the same for every size.
        known = whole if isinstance(whole, int) else width if step == 1 else None
        if known is None:
            return None
        total = max((-(-known // step) - 1) * step + width - known, 0)
        less, more = total // 2, total - total // 2
        begins.append(less if is_upper else more)
        ends.append(more if is_upper else less)
    return [*begins, *ends]
