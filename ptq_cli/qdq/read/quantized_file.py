"""A quantized ONNX file, whoever made it, in the form that the proofs read; the keys of its metadata."""

import json
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.core.errors import ModelFormatError, NotQuantizedError
from ptq_cli.models.graph_reading import every_node, tell_apart
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.loading.source import ModelKind, detect_kind
from ptq_cli.models.opset import inline_functions
from ptq_cli.models.pair_operators import DEQUANTIZE, MICROSOFT, is_integer_operator, is_pair_node
from ptq_cli.models.preparing.rewriting import drop
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.models.shapes import infer_shapes
from ptq_cli.plan.graph_questions import gate_of, silu_input
from ptq_cli.plan.target.rules import QUICK_GELU


class MetadataKey:
    """Keys of an exported model's metadata: who made it, of what, and by which settings."""

    FLOAT_SHA256 = "ptq.float_sha256"
    STATISTICS_SHA256 = "ptq.statistics_sha256"
    AMAX_METHOD = "ptq.amax_method"
    AMAX_PERCENTILE = "ptq.amax_percentile"
    WEIGHT_AMAX = "ptq.weight_amax"
    OVERRIDES = "ptq.amax_overrides"
    QUANTIZERS = "ptq.quantizers"
    WEIGHTS = "ptq.weights"
    ACTIVATIONS = "ptq.activations"
    LAYERS = "ptq.layers"
    PADDED_CHANNELS = "ptq.padded_channels"
    TARGET = "ptq.target"
    FLOAT_TYPE = "ptq.float_type"
    RUNTIME_OPERATORS = "ptq.runtime_operators"
    RECOVERY = "ptq.recovery"
    RANGES = "ptq.ranges"
    FLOAT_LAYERS = "ptq.float_layers"
    RESCALED = "ptq.rescaled"
    VERSION = "ptq.version"


def has_chosen_layers(model: ir.Model) -> bool:
    """Tell whether ptq wrote a model with layers that a user includes or excludes.

    Edge case: Overrides that are not a list of tables are not ptq's, and choose nothing.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["": 20]>
        ...     g (float[n] x) => (float[n] y) { y = Neg(x) }'''
        >>> model = ir.from_onnx_text(text)
        >>> model.metadata_props[MetadataKey.OVERRIDES] = '[{"match": "quantize", "amax": "max"}]'
        >>> has_chosen_layers(model)
        False
        >>> model.metadata_props[MetadataKey.OVERRIDES] = '[{"match": "head", "quantize": false}]'
        >>> has_chosen_layers(model)
        True
    """
    try:
        overrides = json.loads(model.metadata_props.get(MetadataKey.OVERRIDES, "[]"))
    except (ValueError, RecursionError):
        return False
    tables = overrides if isinstance(overrides, list) else []
    return any(isinstance(table, dict) and "quantize" in table for table in tables)


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
            hint="pass the quantized model, such as ptq-run/model_int8.onnx",
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
    """Tell whether a graph holds Q/DQ or integer operators, or ptq wrote it with codebooks alone."""
    if MetadataKey.TARGET in model.metadata_props:
        return True
    return any(is_pair_node(node) or is_integer_operator(node.op_type) for node in every_node(model.graph))


def spelled_out(model: ir.Model, float_model: ir.Model) -> ir.Model:
    """Return a quantized model with the operators of the float model for each QuickGelu; may change it.

    A QuickGelu that the float model has, too, or has no SiLU for, stays one.
    """
    floats = {node.name: node for node in every_node(float_model.graph)}
    for node in [item for item in every_node(model.graph) if item.op_type == QUICK_GELU]:
        before = floats.get(node.name)
        if before is not None and node.domain == MICROSOFT and silu_input(before) is not None:
            _spell_out(node, before)
    return model


def _spell_out(node: ir.Node, before: ir.Node) -> None:
    x, old, gate = node.inputs[0], node.outputs[0], gate_of(before)
    assert isinstance(node.graph, ir.Graph)  # noqa: S101 - functions are inlined
    if gate is None:
        made = [ir.node("Swish", [x], dict(before.attributes), name=node.name)]
    else:
        own = ir.node("Sigmoid", [x], name=gate.name)
        own.outputs[0].name = gate.outputs[0].name
        own.outputs[0].type, own.outputs[0].shape = old.type, old.shape
        made = [own, ir.node("Mul", [x, own.outputs[0]], name=node.name)]
    result = made[-1].outputs[0]
    result.name, result.type, result.shape = old.name, old.type, old.shape
    node.graph.insert_before(node, made)
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    drop(node)
