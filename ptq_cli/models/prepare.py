"""The exported graph is cleaned before anything is measured on it.

onnxscript's optimizer inlines functions and folds constants, its rewriter folds BatchNorm into Conv,
ConvTranspose and Gemm; onnx_ir's passes lift constants to initializers. What is measured afterwards is
what ships: calibration, placement and evaluation all see this graph.
"""

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.core.errors import InvalidOnnxError, first_line
from ptq_cli.models.names import name_graph
from ptq_cli.models.quiet import quiet_exporter

SMALL_CONSTANT = 8192
"""Elements; constants up to here are folded whatever they come from (onnxscript's own default)."""


def prepare(model: ir.Model, what: str) -> ir.Model:
    """Return the model with constants folded, BatchNorm folded, layers named and shapes inferred.

    Requires: a model that the checker accepts. Ensures: every constant is an initializer, no initializer is
    an input, every node and value has a name of its own, nothing tells of the machine that exported it, and
    the checker accepts the result.

    Args:
        model: is changed in place where the passes can.
        what: the file's name, for messages.

    Raises:
        InvalidOnnxError: the result fails the checker.
    """
    from onnxscript import optimizer, rewriter

    sizes = [value.const_value.size for value in model.graph.initializers.values() if value.const_value]
    largest = max([SMALL_CONSTANT, *sizes])
    with quiet_exporter():
        # A transposed weight is folded however large; nothing may grow beyond the largest weight.
        optimizer.optimize(model, input_size_limit=largest, output_size_limit=largest * 8)
        model = rewriter.rewrite(model)
        model = _clean(model)
    name_graph(model)
    with quiet_exporter():
        model = passes.ShapeInferencePass()(model).model
        model = _without_notes(model)
    check_model(model, what)
    return model


def _without_notes(model: ir.Model) -> ir.Model:
    # The exporter's notes hold stack traces with paths of the machine it ran on, and weigh a tenth of a file.
    model = passes.ClearMetadataAndDocStringPass()(model).model
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in model.graph.all_nodes() for value in node.outputs]
    for value in values:
        value.metadata_props.clear()
    return model


def check_model(model: ir.Model, what: str) -> None:
    """Run the ONNX checker with full checks.

    Raises:
        InvalidOnnxError: it fails.
    """
    try:
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InvalidOnnxError(
            f"'{what}' fails the ONNX checker: {first_line(error)}", hint="export it again"
        ) from error


def _clean(model: ir.Model) -> ir.Model:
    for step in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.RemoveInitializersFromInputsPass(),
        passes.IdentityEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.OutputFixPass(),
        passes.TopologicalSortPass(),
    ):
        model = step(model).model
    return model
