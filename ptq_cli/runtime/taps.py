"""Inner tensors become visible: each tapped one is made an output of the graph."""

from collections.abc import Sequence

import onnx
import onnx_ir as ir


def tap(model: ir.Model, tensors: Sequence[str]) -> bytes:
    """Return the serialized model with ``tensors`` as its only outputs, in that order.

    Operators that no tapped tensor needs are not run.

    Edge case:
        A tensor that is an input of the graph cannot be an output of it; the caller has it already.

    Raises:
        KeyError: a name is no tensor of the graph; a plan made for this model has none such.
    """
    values = {value.name: value for node in model.graph for value in node.outputs}
    proto = ir.to_proto(model)
    del proto.graph.output[:]
    for name in tensors:
        dtype = values[name].dtype or ir.DataType.FLOAT
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, dtype.value, None))
    serialized: bytes = proto.SerializeToString()
    return serialized
