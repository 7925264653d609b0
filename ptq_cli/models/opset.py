"""Older ONNX models are converted upward, to the opset that the quantized form needs.

onnx's own converter does it. It was tried on 31 operators from opset 11 and 12, nested graphs included, and
computes the same in all but Hardmax, whose axis it does not move; onnxscript's begins at opset 18. Whoever
converts compares the two models on a batch (``ptq_cli.pipeline.preparing.float_model``).
"""

import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes import common as passes

from ptq_cli.core.errors import InvalidOnnxError, first_line
from ptq_cli.models.large_constants import put_back, set_aside

OLDEST_OPSET = 11
"""The oldest that is read. Clip's bounds became inputs with it, and Resize got the meaning it has today."""
WRITTEN_OPSET = 13
"""An older model is converted to it: QuantizeLinear got its axis there."""


def opset_of(model: ir.Model) -> int:
    """Return the version of ONNX's operators that a model uses.

    Example:
        >>> opset_of(ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}), ir_version=10))
        17
    """
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))


def raise_opset(model: ir.Model, version: int, what: str) -> ir.Model:
    """Return the model in a newer opset, or itself where it is as new already.

    Requires: opset 11 or later. Ensures: inputs, outputs and large constants are as they were, and nodes keep
    their names and metadata. Large constants do not pass through the converter, which would copy them.

    Args:
        model: may be changed.
        version: the opset that is wanted.
        what: the file's name, for messages.

    Raises:
        InvalidOnnxError: the converter does not know how to convert an operator.
    """
    before = opset_of(model)
    if before >= version:
        return model
    model = passes.InlinePass()(model).model  # A function has an opset of its own.
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
    put_back(converted.graph, large)
    _restore_metadata(converted, model)
    return converted


def _restore_metadata(converted: ir.Model, original: ir.Model) -> None:
    """Give nodes the metadata of those that they came from, which tell the module path."""
    known = {node.outputs[0].name: node for node in original.graph.all_nodes() if node.outputs}
    for node in converted.graph.all_nodes():
        source = known.get(node.outputs[0].name) if node.outputs else None
        if source is not None and source.op_type == node.op_type:
            node.metadata_props.update(source.metadata_props)
            node.name = node.name or source.name
    converted.metadata_props.update(original.metadata_props)
