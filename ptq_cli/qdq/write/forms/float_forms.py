"""Write an operator that stays float as another that computes the same and that the target is faster with."""

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import JOINED_AXES, QUICK_GELU
from ptq_cli.qdq.write.forms.joined_axes import join_axes


def write_float_forms(model: ir.Model, plan: Plan) -> None:
    """Change the nodes that the plan says to write as another operator, or with their axes joined.

    Requires: a plan made for the model. Ensures: names, outputs and what is computed are as before.
    """
    forms = {
        layer.name: layer.written_as
        for layer in plan.layers
        if layer.written_as not in ("", QUICK_GELU) and not layer.quantized
    }
    names = FreshNames.of(model.graph) if JOINED_AXES in forms.values() else FreshNames(set())
    for node in [item for item in model.graph.all_nodes() if item.name in forms]:
        form = forms[node.name or ""]
        if form == JOINED_AXES:
            join_axes(node, names)
        else:
            node.op_type = form
