"""A newer opset, where what is inserted needs one."""

import onnx
import onnx_ir as ir
from onnx import version_converter

from ptq_cli.core.errors import InvalidOnnxError, first_line


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model in an opset at least as new as ``opset``; nodes and values keep their names.

    Raises:
        InvalidOnnxError: the converter cannot bring it there.
    """
    if model.opset_imports.get("", 0) >= opset:
        return model
    proto: onnx.ModelProto = ir.to_proto(model)
    try:
        raised = version_converter.convert_version(proto, opset)
    # The converter raises RuntimeError for what it cannot convert, and ValueError beyond 2 GB.
    except (RuntimeError, ValueError) as error:
        raise InvalidOnnxError(
            f"the model has opset {model.opset_imports.get('')} and cannot be converted to {opset}, which "
            f"weights of 4 bits need: {first_line(error)}",
            hint="export it with that opset, or ask for 5 bits or more",
        ) from error
    names = [node.name for node in proto.graph.node]
    if [node.name for node in raised.graph.node] != names:
        raise InvalidOnnxError(
            f"converting the model to opset {opset}, which weights of 4 bits need, changed its operators",
            hint="export it with that opset, or ask for 5 bits or more",
        )
    return ir.from_proto(raised)
