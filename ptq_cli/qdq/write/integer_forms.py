"""Write an operator that the target has no integer kernel for in operators that it has one for.

Requires: the operator's input and result have their pairs. Ensures: the nodes between the pairs compute what
the operator does, and the last of them has its name.

Source:
    Howard et al., "Searching for MobileNetV3", https://arxiv.org/abs/1905.02244, section 5.2, for HardSwish.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import IntegerFormat, NumberFormat
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import moved_tensor
from ptq_cli.models.graph_reading import every_node, input_at, register_constant
from ptq_cli.models.integer_operators import MICROSOFT
from ptq_cli.models.names import RESULT, FreshNames
from ptq_cli.models.pair_operators import CLAMPS, dequantized_by
from ptq_cli.models.preparing.rewriting import drop
from ptq_cli.plan.graph_questions import gate_of, silu_input
from ptq_cli.plan.nested_layers import axis_of
from ptq_cli.plan.operator_axes import reduced_axes
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import CLAMPED_SUM, IMAGE_AXIS, JOINED_AXES, QUICK_GELU
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    make_add,
    make_dequantize,
    make_quantize,
    put_in_front,
    take_place,
)

Values = npt.NDArray[np.float64]
SHIFT, UPPER = 3.0, 6.0
"""HardSwish is ``x * clip(x + 3, 0, 6) / 6``."""


def write_integer_forms(model: ir.Model, plan: Plan) -> None:
    """Replace each quantized operator whose plan says so by its integer form."""
    clamped = {layer.name for layer in plan.layers if layer.quantized and layer.written_as == CLAMPED_SUM}
    names = FreshNames.of(model.graph) if clamped else FreshNames(set())
    for node in [item for item in every_node(model.graph) if item.name in clamped]:
        _write_clamped_sum(model.graph, node, names)


def gate_step(parameters: QuantParameters) -> float:
    """Return the step of ``clip(x + 3, 0, 6)``, whose range ends where it does for the grid of x.

    Example:
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> [round(gate_step(parameters_from_range(-4.0, high, UINT8)) * 255, 2) for high in (1.0, 8.0)]
        [4.0, 6.0]
    """
    format = parameters.format
    end = (format.qmax - int(parameters.zero_point)) * float(parameters.scale)
    return min(UPPER, end + SHIFT) / _steps_of(format)


def _steps_of(format: NumberFormat) -> float:
    """Return the steps of the gate: those of all bits of the type, however few of them x has."""
    whole = format.whole if isinstance(format, IntegerFormat) else format
    return whole.qmax - whole.qmin


def clamped_sum(x: Values, parameters: QuantParameters) -> Values:
    """Return what the integer form computes of values on their grid, before its result is quantized."""
    step = gate_step(parameters)
    steps = _steps_of(parameters.format)
    found: Values = x * (np.clip(np.rint((x + SHIFT) / step), 0, steps) * (step / UPPER))
    return found


def hard_swish(x: Values) -> Values:
    """Return ``x * clip(x + 3, 0, 6) / 6``."""
    found: Values = x * np.clip(x + SHIFT, 0.0, UPPER) / UPPER
    return found


def _write_clamped_sum(main: ir.Graph, node: ir.Node, names: FreshNames) -> None:
    """Write a HardSwish as an Add, whose pair is the Clip and the division, and a Mul.

    The QuantizeLinear behind the Add has the range [0, 6], so that the Clip needs no operator, or less of it
    where x ends below 3. The DequantizeLinear behind that has a sixth of its scale, so that the division
    needs none.
    """
    x = node.inputs[0]
    before = dequantized_by(x)
    if x is None or before is None:
        raise RuntimeError(f"the input of '{node.name}' has no DequantizeLinear")
    grid = grid_of(before)
    parameters = grid.parameters
    if parameters is None:
        raise RuntimeError(f"the input of '{node.name}' has no scale of its own")
    name, format = node.name or node.op_type, parameters.format
    step = gate_step(parameters)
    whole = format.whole if isinstance(format, IntegerFormat) else format
    zero = np.asarray(whole.qmin, format.storage)

    def constant(role: str, value: Array) -> ir.Value:
        return add_initializer(main, names.claim(f"{name}.{role}"), value)

    lowest = constant("gate.zero_point", zero)
    one = constant("shift", np.asarray(1, format.storage))
    nothing = constant("shift.zero_point", np.asarray(0, format.storage))
    three = make_dequantize(
        one,
        constant("shift.scale", np.asarray(SHIFT, np.float32)),
        nothing,
        names.claim(f"{name}/shift/DequantizeLinear"),
    )
    shifted = make_add(x, three.outputs[0], names.claim(f"{name}/Add"))
    quantize = make_quantize(
        shifted.outputs[0],
        constant("gate.scale", np.asarray(step, np.float32)),
        lowest,
        names.claim(f"{name}/gate/QuantizeLinear"),
    )
    dequantize = make_dequantize(
        quantize.outputs[0],
        constant("gate.sixth", np.asarray(step / UPPER, np.float32)),
        lowest,
        names.claim(f"{name}/gate/DequantizeLinear"),
    )
    put_in_front(node, three, shifted, quantize, dequantize)
    product = ir.node("Mul", [x, dequantize.outputs[0]], name=name)
    take_place(node, product)


# An operator along one axis reads a tensor whose later axes are joined into one.
#
# ONNX Runtime 1.31 transposes what a Softmax reads so that its axis comes last. With one axis behind it
# that is a transpose of matrices; with several it is a general one, several times as slow as the Softmax
# itself.
#
# Requires: a Softmax with a known rank and at least two axes behind its own. Ensures: the same bits, in a
# Reshape, the operator, and a Reshape back, which has the operator's name and its result.


def join_axes(node: ir.Node, names: FreshNames) -> None:
    """Write an operator along one axis with the axes behind that as one."""
    x, old = node.inputs[0], node.outputs[0]
    if x is None or x.shape is None or not isinstance(node.graph, ir.Graph):
        raise TypeError("only an operator with a known rank, in a graph, has axes to join")
    kept = [0] * (axis_of(node) + 1)  # 0: as in the input.
    sizes = list(x.shape)[len(kept) :]
    name = node.name or ""
    shape = add_initializer(node.graph, names.claim(f"{name}/shape"), np.asarray([*kept, -1], np.int64))
    flat = ir.node("Reshape", [x, shape], name=names.claim(f"{name}/Reshape"))
    inner = ir.node(
        node.op_type, flat.outputs, {"axis": len(kept) - 1}, name=names.claim(f"{name}/{node.op_type}")
    )
    before: list[ir.Node] = [flat, inner]
    if all(isinstance(size, int) for size in sizes):
        whole = add_initializer(
            node.graph, names.claim(f"{name}/whole_shape"), np.asarray([*kept, *sizes], np.int64)
        )
    else:
        asked = ir.node("Shape", [x], name=names.claim(f"{name}/Shape"))
        before.insert(0, asked)
        whole = asked.outputs[0]
    back = ir.node("Reshape", [*inner.outputs, whole], name=name)
    for made in (*before, back):
        made.metadata_props.update(node.metadata_props)
        for output in made.outputs:
            output.name = names.claim(f"{made.name}.output")
            output.type = ir.TensorType(ir.DataType.INT64) if made.op_type == "Shape" else old.type
    put_in_front(node, *before)
    take_place(node, back)


# An operator that reduces a signal reduces an image of one column.
#
# Requires: it goes over the last of three axes alone. Ensures: the same values; the last node has its name.


def add_image_axis(node: ir.Node, names: FreshNames) -> None:
    """Write an operator over the last of three axes as one over the last two of four."""
    x, old, name = node.inputs[0], node.outputs[0], node.name or ""
    if x is None or not isinstance(node.graph, ir.Graph):
        raise TypeError("only an operator in a graph has an input to unsqueeze")
    graph = node.graph

    def axes(what: str, *values: int) -> ir.Value:
        return add_initializer(graph, names.claim(f"{name}/{what}"), np.asarray(values, np.int64))

    wide = ir.node("Unsqueeze", [x, axes("image_axis", 2)], name=names.claim(f"{name}/Unsqueeze"))
    is_kept = bool(node.attributes.get_int("keepdims", 1))
    inputs = [*wide.outputs]
    attributes: dict[str, int | list[int]] = {}
    if reduced_axes(node):
        attributes["keepdims"] = 1
        if "axes" in node.attributes:
            attributes["axes"] = [2, 3]
        else:
            inputs.append(axes("axes", 2, 3))
    inner = ir.node(node.op_type, inputs, attributes, name=names.claim(f"{name}/{node.op_type}"))
    gone = axes("gone", 2) if is_kept else axes("gone", 2, 3)
    back = ir.node("Squeeze", [*inner.outputs, gone], name=name)
    for made in (wide, inner, back):
        made.metadata_props.update(node.metadata_props)
        made.outputs[0].name = names.claim(f"{made.name}.output")
        made.outputs[0].type = old.type
    put_in_front(node, wide, inner)
    take_place(node, back)


# Write an operator that stays float as another that computes the same and that the target is faster with.


def write_float_forms(model: ir.Model, plan: Plan) -> None:
    """Change the nodes that the plan says to write as another operator, or with fewer or more axes.

    Requires: a plan made for the model. Ensures: names, outputs and what is computed are as before.
    """
    forms = {
        layer.name: layer.written_as
        for layer in plan.layers
        if layer.written_as not in ("", QUICK_GELU) and not layer.quantized
    }
    written = {JOINED_AXES: join_axes, IMAGE_AXIS: add_image_axis}
    names = FreshNames.of(model.graph) if written.keys() & forms.values() else FreshNames(set())
    for node in [item for item in every_node(model.graph) if item.name in forms]:
        form = forms[node.name or ""]
        if form in written:
            written[form](node, names)
        else:
            node.op_type = form


# Pass: a SiLU that reads a DequantizeLinear becomes QuickGelu, ONNX Runtime's own operator for it.
#
# ONNX Runtime computes an integer Sigmoid by a table, and an integer Mul in SSE2. In float it merges the
# two, but not behind a DequantizeLinear, of which each of them gets one of its own. QuickGelu is faster
# than both, and rounds once where they round twice.
#
# Requires: the pairs are in place; what compares the graph with the float one layer by layer, as a recovery
# does, is done. Ensures: what is computed is as before to rounding; the operator has the name of the last
# one of the SiLU; the Sigmoid is gone. A SiLU that reads a float value stays: ONNX Runtime merges that
# itself.
#
# Source:
#     ONNX Runtime's ContribOperators.md, com.microsoft.QuickGelu: ``x * sigmoid(alpha * x)``.


def write_runtime_operators(model: ir.Model, plan: Plan) -> None:
    """Replace each operator whose plan says so by one of the runtime's own."""
    chosen = {layer.name for layer in plan.layers if layer.written_as == QUICK_GELU and not layer.quantized}
    for node in [item for item in every_node(model.graph) if item.name in chosen]:
        x = silu_input(node)
        if x is not None and dequantized_by(x) is not None:
            _write_quick_gelu(node, x)
            model.opset_imports.setdefault(MICROSOFT, 1)


def _write_quick_gelu(node: ir.Node, x: ir.Value) -> None:
    gate = gate_of(node)
    alpha = node.attributes.get_float("alpha", 1.0)
    take_place(node, ir.node(QUICK_GELU, [x], {"alpha": alpha}, domain=MICROSOFT, name=node.name))
    if gate is not None:
        drop(gate)


# Pass: a Relu or Clip behind a layer whose weight is in blocks is written as Max and Min.
#
# ONNX Runtime 1.31 takes a Relu or Clip for a part of the operator before it, looks for a QuantizeLinear
# behind the two, and without one leaves the DequantizeLinear of the weight in the graph. Max and Min
# compute the same.
#
# Requires: bounds of a Clip are constants. Ensures: the last operator has the name of the one that it
# replaces.


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


# Pass: a Gemm whose weight is in blocks, with ``transB``, becomes one that reads its weight turned.
#
# ONNX Runtime 1.31 merges a DequantizeLinear of blocks along axis 0 and a Gemm into MatMulNBits, and
# leaves one along axis 1 with ``transB`` in the graph: the weight would be restored to floats at each run.
# PyTorch's exporters write such Gemms.
#
# Requires: what compares the graph with the float one layer by layer, as a recovery does, is done. Ensures:
# the Gemm computes what it did; integers, scales and zero points that nobody else reads are stored turned;
# those of a table of embeddings stay, with a Transpose behind each, which a runtime computes once, as it
# loads.


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
