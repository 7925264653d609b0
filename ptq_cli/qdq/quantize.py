"""The passes in order: a float model and parameters go in, a quantized model comes out."""

import onnx_ir as ir

from ptq_cli.plan.sites import Plan
from ptq_cli.plan.tied_tables import tied_tables
from ptq_cli.qdq.activations import insert_activation_pairs
from ptq_cli.qdq.constants import store_constants
from ptq_cli.qdq.float_forms import write_float_forms
from ptq_cli.qdq.parameters import Parameters
from ptq_cli.qdq.structure import structure_faults
from ptq_cli.qdq.tied_tables import share_tables


def quantize_model(model: ir.Model, plan: Plan, parameters: Parameters) -> ir.Model:
    """Return the quantized model; ``model`` itself is left as it is.

    Requires: a prepared model, a plan made for it, parameters for each site. Ensures: its Q/DQ structure is
    well formed. The checker is asked where it is stored.

    Raises:
        RuntimeError: its Q/DQ structure is not well formed, which is a bug in ptq.
    """
    quantized = model.clone()
    write_float_forms(quantized, plan)
    tied = list(tied_tables(quantized.graph, plan.weights))
    store_constants(quantized, plan, parameters)
    share_tables(quantized, tied)
    insert_activation_pairs(quantized, plan, parameters.activations)
    faults = list(structure_faults(quantized))
    if faults:
        raise RuntimeError(f"the quantized graph is malformed: {'; '.join(faults[:5])}")
    return quantized
