"""Pass: padding that counts in a mean is written as a Pad."""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import (
    RESULT,
    FreshNames,
    every_node,
    input_at,
)
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.plan.neighbors import moved_to
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    make_dequantize,
    make_quantize,
    put_in_front,
)


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
