"""Pass: a SiLU that reads a DequantizeLinear becomes QuickGelu, ONNX Runtime's own operator for it.

ONNX Runtime computes an integer Sigmoid by a table, and an integer Mul in SSE2. In float it merges the two,
but not behind a DequantizeLinear, of which each of them gets one of its own. QuickGelu is faster than both,
and rounds once where they round twice.

Requires: the pairs are in place; what compares the graph with the float one layer by layer, as a recovery
does, is done. Ensures: what is computed is as before to rounding; the operator has the name of the last one
of the SiLU; the Sigmoid is gone. A SiLU that reads a float value stays: ONNX Runtime merges that itself.

Source:
    ONNX Runtime's ContribOperators.md, com.microsoft.QuickGelu: ``x * sigmoid(alpha * x)``.
"""

import onnx_ir as ir

from ptq_cli.models.operators.dynamic_lstm import MICROSOFT
from ptq_cli.models.operators.pair_operators import dequantized_by
from ptq_cli.models.preparing.rewriting.edit import drop
from ptq_cli.plan.questions.sigmoid_gates import gate_of, silu_input
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import QUICK_GELU
from ptq_cli.qdq.write.pair_nodes import put_in_front


def write_runtime_operators(model: ir.Model, plan: Plan) -> None:
    """Replace each operator whose plan says so by one of the runtime's own.

    Args:
        model: is changed in place.
        plan: made for it, for a target that allows such operators.
    """
    chosen = {layer.name for layer in plan.layers if layer.written_as == QUICK_GELU and not layer.quantized}
    for node in [item for item in model.graph.all_nodes() if item.name in chosen]:
        x = silu_input(node)
        if x is not None and dequantized_by(x) is not None:
            _write_quick_gelu(node, x)
            model.opset_imports.setdefault(MICROSOFT, 1)


def _write_quick_gelu(node: ir.Node, x: ir.Value) -> None:
    gate, old = gate_of(node), node.outputs[0]
    alpha = node.attributes.get_float("alpha", 1.0)
    new = ir.node(QUICK_GELU, [x], {"alpha": alpha}, domain=MICROSOFT, name=node.name)
    result = new.outputs[0]
    result.name, result.type, result.shape = old.name, old.type, old.shape
    new.metadata_props.update(node.metadata_props)
    put_in_front(node, new)
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    drop(node)
    if gate is not None:
        drop(gate)
