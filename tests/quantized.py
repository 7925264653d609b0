"""A quantized copy of a model, for tests that look at the float one as well."""

import onnx_ir as ir

from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import Parameters


def quantize_model(model: ir.Model, plan: Plan, parameters: Parameters) -> ir.Model:
    """Return the quantized model, and leave ``model`` as it is."""
    quantized = model.clone()
    quantize_in_place(quantized, plan, parameters)
    return quantized
