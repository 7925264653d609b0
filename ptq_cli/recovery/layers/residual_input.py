"""What is added to a layer's output: the error of one can be made up for by the other."""

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import sole_reader
from ptq_cli.plan.questions.graph_questions import is_constant
from ptq_cli.recovery.layers.quantized_layer import QuantizedLayer


def residual_input(model: ir.Model, layer: QuantizedLayer) -> str:
    """Return the name of the tensor that an Add adds to what a layer makes, and to nothing else of it.

    Args:
        model: the float model.
        layer: of it; the Add of its own bias may come between.

    Edge case:
        Without such an Add the name is empty.
    """
    value = next((out for node in model.graph for out in node.outputs if out.name == layer.makes), None)
    for _ in range(2):
        reader = sole_reader(value) if value is not None and not value.is_graph_output() else None
        if value is None or reader is None or reader.op_type != "Add":
            return ""
        other = next((item for item in reader.inputs if item is not value), None)
        if other is None:  # It is added to itself.
            return ""
        if not is_constant(other):
            return other.name or ""
        value = reader.outputs[0]
    return ""
