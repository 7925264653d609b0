"""Which opsets the ONNX Runtime that is installed knows."""

import onnx
from onnx import TensorProto, helper

from ptq_cli.core.errors import InvalidOnnxError, RuntimeFailedError
from ptq_cli.runtime.sessions.session import Session

SURELY_KNOWN = 22
"""Every ONNX Runtime that ptq runs with knows these; newer ones are tried."""


def require_known_opset(opset: int, what: str) -> None:
    """Check that ONNX Runtime can load a model of an opset.

    Args:
        opset: version of ONNX's operators.
        what: the file's name, for messages.

    Raises:
        InvalidOnnxError: it cannot.

    Example:
        >>> require_known_opset(20, "m.onnx")
    """
    if opset <= SURELY_KNOWN or _loads(opset):
        return
    newest = next(version for version in range(opset - 1, SURELY_KNOWN - 1, -1) if _loads(version))
    raise InvalidOnnxError(
        f"model '{what}' has opset {opset}, but the installed ONNX Runtime supports only {newest} and older",
        hint=f"export it with opset {newest}, or install a newer onnxruntime",
    )


def _loads(opset: int) -> bool:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "probe", [value], [result])
    # The oldest format that may hold it: a newer one than the runtime's is refused for another reason.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        Session(onnx.ModelProto.SerializeToString(model))
    except RuntimeFailedError:
        return False
    return True
