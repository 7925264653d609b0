"""A quantized ONNX file, whoever made it, in the form that the proofs read."""

from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.core.errors import ModelFormatError, NotQuantizedError
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.integer_operators import is_integer_operator
from ptq_cli.models.loading.detect import ModelKind, detect_kind
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.names import tell_apart
from ptq_cli.models.opset import inline_functions
from ptq_cli.models.pair_operators import DEQUANTIZE, is_pair_node
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.models.shapes import infer_shapes
from ptq_cli.qdq.metadata import TARGET


def open_quantized(path: Path) -> ir.Model:
    """Return a quantized model: constants as initializers, functions inlined, every node with a name.

    What it computes, and the names it has, are as in the file.
    """
    kind = detect_kind(path)
    if kind is not ModelKind.ONNX:
        raise ModelFormatError(
            f"model '{path.name}' is a {kind.value}, expected a quantized ONNX model",
            hint="ptq export writes one; ptq inspect supports every kind of model",
        )
    model = named(load_onnx(path))
    if not is_quantized(model):
        raise NotQuantizedError(
            f"model '{path.name}' contains no QuantizeLinear and no DequantizeLinear",
            hint="pass the quantized model, such as ptq-run/model.int8.onnx",
        )
    return model


def named(model: ir.Model) -> ir.Model:
    """Return the model with constants as initializers, functions inlined, and own names and shapes for all.

    Files of other tools hold shapes and types of few tensors, and rules ask for both.
    """
    with quiet_exporter():
        model = inline_functions(model)
        for step in (
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            passes.LiftSubgraphInitializersToMainGraphPass(),
            passes.NameFixPass(),
        ):
            model = step(model).model
        infer_shapes(model, strict=False)
    tell_apart(model.graph)
    _put_blocks_beside_readers(model)
    return model


def _put_blocks_beside_readers(model: ir.Model) -> None:
    """Put blocks that a nested graph reads back into it: ONNX Runtime looks for them only there."""
    for node in every_node(model.graph):
        home = node.graph
        if home is model.graph or not isinstance(home, ir.Graph):
            continue
        if node.op_type != DEQUANTIZE or not node.attributes.get_int("block_size", 0):
            continue
        for value in dict.fromkeys(node.inputs):
            held = value is not None and model.graph.initializers.get(value.name or "") is value
            if value is not None and held and all(use.node.graph is home for use in value.uses()):
                del model.graph.initializers[value.name or ""]
                home.register_initializer(value)


def with_types(model: ir.Model) -> ir.Model:
    """Return a model with the types and shapes of what its pairs compute, which ptq leaves out of a file."""
    infer_shapes(model, strict=False)
    return model


def is_quantized(model: ir.Model) -> bool:
    """Return whether a graph holds Q/DQ or integer operators, or ptq wrote it with codebooks alone."""
    if TARGET in model.metadata_props:
        return True
    return any(is_pair_node(node) or is_integer_operator(node.op_type) for node in every_node(model.graph))
