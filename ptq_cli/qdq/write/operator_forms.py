"""Passes: operators written as others that a runtime is faster or right with, in float or in integers.

Ensures, of each: names, outputs and what is computed are as before; the last of several has the name.

Requires: the operator's input and result have their pairs. Ensures: the nodes between the pairs compute what
the operator does, and the last of them has its name.

Source:
    Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2.
"""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import IntegerFormat, NumberFormat
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.pair_operators import MICROSOFT, dequantized_by
from ptq_cli.models.preparing.rewriting import drop
from ptq_cli.plan.graph_questions import axis_of, gate_of, reduced_axes, silu_input
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import CLAMPED_SUM, IMAGE_AXIS, JOINED_AXES, QUICK_GELU
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.new_nodes import NewNodes, new_node, put_in_front, take_place


def write_float_forms(model: ir.Model, plan: Plan) -> None:
    """Change the nodes that a plan for the model says to write as another, or with fewer or more axes."""
    forms = {
        layer.name: layer.written_as
        for layer in plan.layers
        if layer.written_as not in ("", QUICK_GELU) and not layer.quantized
    }
    if not forms:
        return
    new, written = NewNodes(model.graph), {JOINED_AXES: _join_axes, IMAGE_AXIS: _add_image_axis}
    for node in [item for item in every_node(model.graph) if item.name in forms]:
        if (form := forms[node.name or ""]) in written:
            written[form](new, node)
        else:
            node.op_type = form


def _join_axes(new: NewNodes, node: ir.Node) -> None:
    """Write an operator along one axis with the two or more axes behind that as one; same bits.

    ONNX Runtime 1.31 transposes what a Softmax reads so that its axis comes last. With one axis behind it
    that is a transpose of matrices; with several it is a general one, several times as slow as the Softmax
    itself.
    """
    x, old, name = node.inputs[0], node.outputs[0], node.name or ""
    if x is None or x.shape is None:
        raise TypeError("only an operator with a known rank has axes to join")
    kept = [0] * (axis_of(node) + 1)  # 0: as in the input.
    sizes = list(x.shape)[len(kept) :]
    shape = new.constant(f"{name}/shape", np.asarray([*kept, -1], np.int64), node.graph)
    flat = new_node("Reshape", [x, shape], new.claim(f"{name}/Reshape"), dtype=old.dtype)
    along = {"axis": len(kept) - 1}
    name_inside = new.claim(f"{name}/{node.op_type}")
    inner = new_node(node.op_type, flat.outputs, name_inside, attributes=along, dtype=old.dtype)
    before = [flat, inner]
    if all(isinstance(size, int) for size in sizes):
        whole = new.constant(f"{name}/whole_shape", np.asarray([*kept, *sizes], np.int64), node.graph)
    else:
        asked = new_node("Shape", [x], new.claim(f"{name}/Shape"), dtype=ir.DataType.INT64)
        before.insert(0, asked)
        whole = asked.outputs[0]
    _replace(node, before, ir.node("Reshape", [*inner.outputs, whole], name=name))


def _add_image_axis(new: NewNodes, node: ir.Node) -> None:
    """Write an operator over the last of three axes as one over the last two of four: an image's column."""
    x, name, dtype = node.inputs[0], node.name or "", node.outputs[0].dtype

    def axes(what: str, *values: int) -> ir.Value:
        return new.constant(f"{name}/{what}", np.asarray(values, np.int64), node.graph)

    image = [x, axes("image_axis", 2)]
    wide = new_node("Unsqueeze", image, new.claim(f"{name}/Unsqueeze"), dtype=dtype)
    inputs: list[ir.Value | None] = [*wide.outputs]
    attributes: dict[str, int | list[int]] = {}
    if reduced_axes(node):
        attributes["keepdims"] = 1
        if "axes" in node.attributes:
            attributes["axes"] = [2, 3]
        else:
            inputs.append(axes("axes", 2, 3))
    inside = new.claim(f"{name}/{node.op_type}")
    inner = new_node(node.op_type, inputs, inside, attributes=attributes, dtype=dtype)
    gone = axes("gone", 2) if node.attributes.get_int("keepdims", 1) else axes("gone", 2, 3)
    _replace(node, [wide, inner], ir.node("Squeeze", [*inner.outputs, gone], name=name))


def _replace(node: ir.Node, before: list[ir.Node], last: ir.Node) -> None:
    for made in before:
        made.metadata_props.update(node.metadata_props)
    put_in_front(node, *before)
    take_place(node, last)


def write_runtime_operators(model: ir.Model, plan: Plan) -> None:
    """Replace each SiLU that reads a DequantizeLinear, and whose plan says so, by QuickGelu.

    ONNX Runtime computes an integer Sigmoid by a table, and an integer Mul in SSE2. In float it merges the
    two, but not behind a DequantizeLinear, of which each of them gets one of its own. QuickGelu is faster
    than both, and rounds once where they round twice. A SiLU that reads a float value stays: ONNX Runtime
    merges that itself.

    Requires: the pairs are in place; what compares the graph with the float one layer by layer, as a recovery
    does, is done. Ensures: the same to rounding; the Sigmoid is gone.

    Source: ONNX Runtime's ContribOperators.md, com.microsoft.QuickGelu: ``x * sigmoid(alpha * x)``.
    """
    chosen = {layer.name for layer in plan.layers if layer.written_as == QUICK_GELU and not layer.quantized}
    for node in [item for item in every_node(model.graph) if item.name in chosen]:
        x, gate = silu_input(node), gate_of(node)
        if x is None or dequantized_by(x) is None:
            continue
        alpha = {"alpha": node.attributes.get_float("alpha", 1.0)}
        take_place(node, ir.node(QUICK_GELU, [x], alpha, domain=MICROSOFT, name=node.name))
        if gate is not None:
            drop(gate)
        model.opset_imports.setdefault(MICROSOFT, 1)


TableValues = npt.NDArray[np.float64]
SHIFT, UPPER = 3.0, 6.0  # HardSwish is ``x * clip(x + 3, 0, 6) / 6``


def write_integer_forms(model: ir.Model, plan: Plan) -> None:
    """Replace each quantized operator whose plan says so by its integer form."""
    clamped = {layer.name for layer in plan.layers if layer.quantized and layer.written_as == CLAMPED_SUM}
    new = NewNodes(model.graph) if clamped else None
    for node in [item for item in every_node(model.graph) if item.name in clamped]:
        if new is not None:
            _write_clamped_sum(new, node)


def gate_step(parameters: QuantParameters) -> float:
    """Return the step of ``clip(x + 3, 0, 6)``, whose range ends where it does for the grid of x.

    Example:
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> [round(gate_step(parameters_from_range(-4.0, high, UINT8)) * 255, 2) for high in (1.0, 8.0)]
        [4.0, 6.0]
    """
    end = (parameters.format.qmax - int(parameters.zero_point)) * float(parameters.scale)
    whole = _whole(parameters.format)
    return min(UPPER, end + SHIFT) / (whole.qmax - whole.qmin)


def _whole(format: NumberFormat) -> NumberFormat:
    """Return the format of the gate: that of all bits of the type, however few of them x has."""
    return format.whole if isinstance(format, IntegerFormat) else format


def clamped_sum(x: TableValues, parameters: QuantParameters) -> TableValues:
    """Return the result of the integer form for values on their grid, before it is quantized."""
    step, whole = gate_step(parameters), _whole(parameters.format)
    gate = np.clip(np.rint((x + SHIFT) / step), 0, whole.qmax - whole.qmin)
    found: TableValues = x * (gate * (step / UPPER))
    return found


def hard_swish(x: TableValues) -> TableValues:
    """Return ``x * clip(x + 3, 0, 6) / 6``."""
    found: TableValues = x * np.clip(x + SHIFT, 0.0, UPPER) / UPPER
    return found


def _write_clamped_sum(new: NewNodes, node: ir.Node) -> None:
    """Write a HardSwish as an Add, whose pair is the Clip and the division, and a Mul.

    The QuantizeLinear behind the Add has the range [0, 6], so that the Clip needs no operator, or less of it
    where x ends below 3. The DequantizeLinear behind that has a sixth of its scale, so that the division
    needs none.
    """
    x, before = node.inputs[0], dequantized_by(node.inputs[0])
    parameters = grid_of(before).parameters if before is not None else None
    if x is None or parameters is None:
        raise RuntimeError(f"the input of '{node.name}' has no DequantizeLinear with one scale")
    name, storage = node.name or node.op_type, parameters.format.storage
    step, lowest = gate_step(parameters), _whole(parameters.format).qmin

    def constant(role: str, value: float, dtype: npt.DTypeLike = np.float32) -> ir.Value:
        return new.constant(f"{name}.{role}", np.asarray(value, dtype))

    zero_point = constant("gate.zero_point", lowest, storage)
    one, nothing = constant("shift", 1, storage), constant("shift.zero_point", 0, storage)
    three = new.dequantize(one, (constant("shift.scale", SHIFT), nothing), f"{name}/shift")
    sum_name = new.claim(f"{name}/Add")
    shifted = new_node("Add", [x, three.outputs[0]], sum_name, dtype=x.dtype, shape=x.shape)
    quantize = new.quantize(shifted.outputs[0], constant("gate.scale", step), zero_point, f"{name}/gate")
    sixth = constant("gate.sixth", step / UPPER)
    gate = new.dequantize(quantize.outputs[0], (sixth, zero_point), f"{name}/gate")
    put_in_front(node, three, shifted, quantize, gate)
    take_place(node, ir.node("Mul", [x, gate.outputs[0]], name=name))
