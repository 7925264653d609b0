"""What operators of other domains compute: ONNX's inference knows none of them, ONNX Runtime knows its own.

Without the type of such a result, whatever reads it would stay float.
"""

import onnx_ir as ir

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.models.files.stored import serialize
from ptq_cli.runtime.sessions.session import Session

LARGE = 1024
"""Elements; shapes are inferred from small constants (axes, sizes), and never from larger ones."""


def know_foreign_types(model: ir.Model) -> int:
    """Note type and shape of what operators of other domains compute, and return of how many values.

    Edge case:
        Where ONNX Runtime does not know an operator either, nothing is noted; running it says so.

    Args:
        model: is changed in place.
    """
    values = {value.name: value for value in _unknown(model)}
    if not values:
        return 0
    asked = model.clone()
    _without_large_constants(asked.graph)
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


def _without_large_constants(graph: ir.Graph) -> None:
    """Make inputs of them, so that ONNX Runtime reads none."""
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.size < LARGE or value.is_graph_input():
            continue
        del graph.initializers[name]
        value.const_value = None
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        graph.inputs.append(value)
