"""Inner tensors become visible: each tapped one is made an output of the main graph."""

from collections.abc import Sequence

import onnx_ir as ir

from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.graph_reading import remove_unused
from ptq_cli.runtime.tapping.nested_taps import handed_out


def tap(model: ir.Model, tensors: Sequence[str]) -> StoredModel:
    """Return the serialized model with ``tensors`` as its only outputs, in that order.

    Operators that no tapped tensor needs are removed, because ONNX Runtime would run them all the same. The
    inputs stay, needed or not, so that a batch fits.

    Edge case:
        A tensor that is an input of the graph cannot be an output of it; the caller has it already. One of a
        nested graph is handed out on a single axis; see ``nested_taps``.

    Raises:
        KeyError: a name is not a tensor of the graph; this cannot happen with a plan for this model.
    """
    tapped = model.clone()
    values = handed_out(tapped, tensors)
    tapped.graph.outputs[:] = [_as_output(values[name]) for name in tensors]
    remove_unused(tapped)
    return serialize(tapped)


def _as_output(value: ir.Value) -> ir.Value:
    value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
    # A shape that was inferred for another batch size would not fit.
    value.shape = None
    return value
