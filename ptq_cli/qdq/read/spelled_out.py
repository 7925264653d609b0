"""A quantized graph as it was before operators of the runtime's own took the place of others."""

import onnx_ir as ir

from ptq_cli.models.operators.dynamic_lstm import MICROSOFT
from ptq_cli.models.preparing.rewriting.edit import drop
from ptq_cli.plan.questions.sigmoid_gates import gate_of, silu_input
from ptq_cli.plan.target.rules import QUICK_GELU


def spelled_out(model: ir.Model, float_model: ir.Model) -> ir.Model:
    """Return a quantized model with the operators of the float model for each QuickGelu; may change it.

    Edge case:
        A QuickGelu that the float model has, too, or has no SiLU for, stays one.
    """
    floats = {node.name: node for node in float_model.graph.all_nodes()}
    for node in [item for item in model.graph.all_nodes() if item.op_type == QUICK_GELU]:
        before = floats.get(node.name)
        if before is not None and node.domain == MICROSOFT and silu_input(before) is not None:
            _spell_out(node, before)
    return model


def _spell_out(node: ir.Node, before: ir.Node) -> None:
    x, old, gate = node.inputs[0], node.outputs[0], gate_of(before)
    assert isinstance(node.graph, ir.Graph)  # noqa: S101 - functions are inlined
    if gate is None:
        new = ir.node("Swish", [x], dict(before.attributes), name=node.name)
    else:
        own = ir.node("Sigmoid", [x], name=gate.name)
        own.outputs[0].name = gate.outputs[0].name
        own.outputs[0].type, own.outputs[0].shape = old.type, old.shape
        node.graph.insert_before(node, own)
        new = ir.node("Mul", [x, own.outputs[0]], name=node.name)
    result = new.outputs[0]
    result.name, result.type, result.shape = old.name, old.type, old.shape
    node.graph.insert_before(node, new)
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    drop(node)
