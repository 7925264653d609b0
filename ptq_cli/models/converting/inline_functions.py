"""Functions that an ONNX file defines are put in the place of their calls."""

import onnx_ir as ir
from onnx_ir.passes import PreconditionError
from onnx_ir.passes.common import InlinePass

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.errors.error_text import first_line


def inline_functions(model: ir.Model) -> ir.Model:
    """Return the model without functions of its own.

    Args:
        model: may be changed in place.

    Raises:
        InvalidOnnxError: a function needs another opset than the model has, or calls itself.

    Example:
        >>> len(inline_functions(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)).functions)
        0
    """
    try:
        return InlinePass()(model).model
    except (ValueError, PreconditionError) as error:
        raise InvalidOnnxError(
            f"the functions of the model cannot be inlined: {first_line(error, 300)}",
            hint="export it again with one opset for the model and its functions",
        ) from error
