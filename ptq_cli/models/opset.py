"""Older ONNX models are converted upward; operators whose meaning ONNX's converter changes are kept right.

Tried with it on 76 operators of opsets 7 to 10 in onnx 1.23. The reference is what ONNX Runtime computes
of the old operators; for Resize-10 the specification does not say how it rounds.

onnx's own converter does it. It was tried on 76 operators from opset 7 to 12, nested graphs included;
``older_operators`` mends those of which it makes something else. onnxscript's begins at opset 18. Whoever
converts compares the two models on a batch (``ptq_cli.setup.float_model``).
"""

import numpy as np
import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes import PreconditionError
from onnx_ir.passes import common as passes
from onnx_ir.passes.common import InlinePass

from ptq_cli.core.errors import InvalidOnnxError, first_line
from ptq_cli.models.graph_reading import FreshNames, every_node, input_at
from ptq_cli.models.shapes import put_back, set_aside

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

    Source: ONNX Runtime, ``core/providers/cpu/tensor/upsamplebase.h``: before opset 11 the transformation is
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


OLDEST_OPSET = 7  # as ONNX Runtime; broadcasting got today's meaning with it
_OLDEST_IR_VERSION = 4  # before, each initializer had to be an input as well
WRITTEN_OPSET = 13  # older models are converted to it: QuantizeLinear got its axis
QUARTER_BYTE_OPSET = 25  # the first in which DequantizeLinear reads INT2 and UINT2
DEFAULT_DOMAIN = "ai.onnx"  # in files, beside the empty one that onnx_ir has
SCAN_OF_ONE_SEQUENCE = 9  # before, a Scan had a batch of sequences


def opset_of(model: ir.Model) -> int:
    """Return the version of ONNX's operators that a model uses."""
    return model.opset_imports.get("", model.opset_imports.get(DEFAULT_DOMAIN, 0))


def name_default_domain(model: ir.Model) -> ir.Model:
    """Return the model, changed in place so that its import of ONNX's operators has the empty domain."""
    for imports in [model.opset_imports, *(function.opset_imports for function in model.functions.values())]:
        version = imports.pop(DEFAULT_DOMAIN, None)
        if version is not None:
            imports.setdefault("", version)
    return model


def raise_opset(model: ir.Model, version: int, what: str) -> ir.Model:
    """Return the model in a newer opset, or itself where it is as new already.

    Requires: opset 7 or later. Ensures: inputs, outputs and large constants are as they were, and nodes keep
    their names and metadata. Large constants do not pass through the converter, which would copy them.

    Raises: InvalidOnnxError: an operator cannot be converted.
    """
    before = opset_of(model)
    if before >= version:
        return model
    _require_one_sequence(model, before, what)
    model = inline_functions(model)  # A function has an opset of its own.
    model = passes.RemoveInitializersFromInputsPass()(model).model
    model.ir_version = max(model.ir_version, _OLDEST_IR_VERSION)
    spell_out_older(model, before)
    large = set_aside(model.graph)
    try:
        proto = version_converter.convert_version(ir.to_proto(model), version)
    # It is C++, and raises what its parts raise.
    except Exception as error:
        raise InvalidOnnxError(
            f"'{what}' cannot be converted from opset {before} to {version}: {first_line(error)}",
            hint=f"export it again with opset {version} or later",
        ) from error
    converted = ir.from_proto(proto)
    if before < FIRST_RESIZE_WITH_MODES:
        set_resize_modes(converted)
    put_back(converted.graph, large)
    _restore_metadata(converted, model)
    return converted


def _require_one_sequence(model: ir.Model, opset: int, what: str) -> None:
    scans = [node for node in every_node(model.graph) if node.op_type == "Scan" and not node.domain]
    if scans and opset < SCAN_OF_ONE_SEQUENCE:
        raise InvalidOnnxError(
            f"'{what}' has a Scan ('{scans[0].name}') of opset {opset}, which runs over a batch of sequences "
            "and has no counterpart in newer opsets",
            hint=f"export it again with opset {SCAN_OF_ONE_SEQUENCE} or later",
        )


def _restore_metadata(converted: ir.Model, original: ir.Model) -> None:
    """Give nodes the metadata of those that they came from, which tell the module path."""
    known = {node.outputs[0].name: node for node in every_node(original.graph) if node.outputs}
    for node in every_node(converted.graph):
        source = known.get(node.outputs[0].name) if node.outputs else None
        if source is not None and source.op_type == node.op_type:
            node.metadata_props.update(source.metadata_props)
            node.name = node.name or source.name
    converted.metadata_props.update(original.metadata_props)


def inline_functions(model: ir.Model) -> ir.Model:
    """Return the model without functions of its own; it may be changed in place."""
    try:
        return InlinePass()(model).model
    except (ValueError, PreconditionError) as error:
        raise InvalidOnnxError(
            f"the functions of the model cannot be inlined: {first_line(error, 300)}",
            hint="export it again with one opset for the model and its functions",
        ) from error
