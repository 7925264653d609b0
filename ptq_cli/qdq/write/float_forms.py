"""Write an operator that stays float as another that computes the same and that the target is faster with."""

import onnx_ir as ir

from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import QUICK_GELU


def write_float_forms(model: ir.Model, plan: Plan) -> None:
    """Change the type of the nodes that the plan says to write as another operator.

    Requires: a plan made for the model. Ensures: names, inputs, outputs and what is computed are as before.
    """
    forms = {
        layer.name: layer.written_as
        for layer in plan.layers
        if layer.written_as not in ("", QUICK_GELU) and not layer.quantized
    }
    for node in model.graph.all_nodes():
        node.op_type = forms.get(node.name or "", node.op_type)
