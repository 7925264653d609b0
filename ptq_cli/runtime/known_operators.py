"""Opsets that the installed ONNX Runtime knows, and the results of its operators of other domains."""

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ptq_cli.core.errors import InvalidOnnxError, RuntimeFailedError
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.shapes import set_aside
from ptq_cli.runtime.session import Session

SURELY_KNOWN = 22  # opset that every supported ONNX Runtime has; newer ones are tried


def know_foreign_types(model: ir.Model) -> int:
    """Note type and shape of what operators of other domains compute, and return of how many values.

    Where ONNX Runtime does not know an operator either, nothing is noted; running it says so.
    """
    values = {value.name: value for value in _unknown(model)}
    if not values:
        return 0
    asked = model.clone()
    set_aside(asked.graph)  # ONNX Runtime reads none of them
    found = {value.name: value for node in asked.graph for value in node.outputs}
    asked.graph.outputs[:] = [found[name] for name in values]
    try:
        specs = Session(serialize(asked), threads=1, optimize=False).output_specs
    except RuntimeFailedError:
        return 0
    for spec in specs:
        values[spec.name].type = ir.TensorType(ir.DataType.from_numpy(spec.dtype))
        values[spec.name].shape = ir.Shape(spec.shape)
    return len(specs)


def _unknown(model: ir.Model) -> list[ir.Value]:
    functions = {identifier[0] for identifier in model.functions}
    known = {"", "ai.onnx", *functions}
    nodes = [node for node in model.graph if node.domain not in known]
    return [value for node in nodes for value in node.outputs if value.name and value.type is None]


def require_known_opset(opset: int, what: str) -> None:
    """Check that ONNX Runtime can load a model of an opset."""
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
