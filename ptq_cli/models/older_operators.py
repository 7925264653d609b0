"""Operators of old opsets that ONNX's version converter converts to another meaning.

Tried with it on 76 operators of opsets 7 to 10 in onnx 1.23. The reference is what ONNX Runtime computes
of the old operators; for Resize-10 the specification does not say how it rounds.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.names import FreshNames

FIRST_RESIZE_WITH_MODES = 11
SOFTMAX_OF_ONE_AXIS = 13  # before, Hardmax took the axes from ``axis`` on as one


def spell_out_older(model: ir.Model, opset: int) -> None:
    """Write operators that the converter refuses or changes with others that it converts.

    Requires: the model is of that opset. Ensures: it computes the same in it, and in a newer one after
    conversion.
    """
    names = FreshNames.of(model.graph)
    for node in list(every_node(model.graph)):
        if node.domain:
            continue
        if node.op_type == "BatchNormalization" and node.attributes.get_int("spatial", 1) == 0:
            _replace(node, _normalization_of_elements(node, names))
        elif node.op_type == "Hardmax" and opset < SOFTMAX_OF_ONE_AXIS:
            _replace(node, _hardmax_of_rows(node, names))


def set_resize_modes(model: ir.Model) -> None:
    """Give each Resize that was an Upsample or a Resize of opset 10 the way in which these find their source.

    Both map a coordinate by dividing it by the scale. Nearest takes the element below it where the scale
    enlarges, and the one above where it reduces.

    Source:
        ONNX Runtime, ``core/providers/cpu/tensor/upsamplebase.h``: before opset 11 the transformation is
        "asymmetric", and the nearest mode "simple".
    """
    for node in every_node(model.graph):
        if node.op_type != "Resize" or node.domain:
            continue
        node.attributes["coordinate_transformation_mode"] = ir.AttrString(
            "coordinate_transformation_mode", "asymmetric"
        )
        if node.attributes.get_string("mode", "nearest") == "nearest":
            node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", _rounding(input_at(node, 2)))


def _rounding(scales: ir.Value | None) -> str:
    tensor = ir.convenience.get_const_tensor(scales) if scales is not None else None
    return "ceil" if tensor is not None and bool(np.any(tensor.numpy() < 1)) else "floor"


def _normalization_of_elements(node: ir.Node, names: FreshNames) -> list[ir.Node]:
    # With spatial = 0 there is a mean and a variance for each element of a sample, and not for each channel.
    x, scale, bias, mean, variance = node.inputs[:5]
    dtype = (variance.dtype if variance is not None else None) or ir.DataType.FLOAT
    epsilon = ir.tensor(np.array(node.attributes.get_float("epsilon", 1e-5), dtype.numpy()))
    small = _node("Constant", [], names, [ir.AttrTensor("value", epsilon)])
    above = _node("Add", [variance, small.outputs[0]], names)
    deviation = _node("Sqrt", [above.outputs[0]], names)
    factor = _node("Div", [scale, deviation.outputs[0]], names)
    centered = _node("Sub", [x, mean], names)
    product = _node("Mul", [centered.outputs[0], factor.outputs[0]], names)
    shifted = _node("Add", [product.outputs[0], bias], names)
    return [small, above, deviation, factor, centered, product, shifted]


def _hardmax_of_rows(node: ir.Node, names: FreshNames) -> list[ir.Node]:
    x, axis = node.inputs[0], node.attributes.get_int("axis", 1)
    shape = _node("Shape", [x], names)
    rows = _node("Flatten", [x], names, [ir.AttrInt64("axis", axis)])
    largest = _node("Hardmax", [rows.outputs[0]], names, [ir.AttrInt64("axis", 1)])
    return [shape, rows, largest, _node("Reshape", [largest.outputs[0], shape.outputs[0]], names)]


def _node(
    op_type: str, inputs: list[ir.Value | None], names: FreshNames, attributes: list[ir.Attr] | None = None
) -> ir.Node:
    node = ir.Node("", op_type, inputs, attributes or (), name=names.claim(op_type))
    node.outputs[0].name = names.claim(f"{node.name}.result")
    return node


def _replace(node: ir.Node, nodes: list[ir.Node]) -> None:
    old, new, graph = node.outputs[0], nodes[-1].outputs[0], node.graph
    if not isinstance(graph, ir.Graph):
        return
    nodes[-1].name = node.name
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [old], [new])
