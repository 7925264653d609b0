"""Operators that stay float, written as others that a runtime is faster or right with."""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import FreshNames, every_node
from ptq_cli.models.integer_operators import MICROSOFT
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.models.preparing.rewriting import drop
from ptq_cli.plan.graph_questions import axis_of, gate_of, reduced_axes, silu_input
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import IMAGE_AXIS, JOINED_AXES, QUICK_GELU
from ptq_cli.qdq.write.pair_nodes import (
    add_initializer,
    put_in_front,
    take_place,
)


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
