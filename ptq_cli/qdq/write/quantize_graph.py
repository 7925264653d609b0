"""The passes in order: a float model and parameters go in, a quantized model comes out."""

import onnx_ir as ir

from ptq_cli.plan.embedding_tables import tied_tables
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.proof.structure import structure_faults
from ptq_cli.qdq.write.activation_pairs import insert_activation_pairs, widen_clamps
from ptq_cli.qdq.write.constant_pairs import NamesBySite, store_constants, turned_names
from ptq_cli.qdq.write.float_forms import write_float_forms
from ptq_cli.qdq.write.integer_forms import write_integer_forms
from ptq_cli.qdq.write.site_parameters import Parameters
from ptq_cli.qdq.write.table_rows import share_tables


def quantize_in_place(model: ir.Model, plan: Plan, parameters: Parameters) -> NamesBySite:
    """Make a float model the quantized one, and return the names of the constants that hold what was decided.

    Requires: a prepared model, a plan made for it, parameters for each site. Ensures: its Q/DQ structure is
    well formed. The checker is asked when it is stored.
    """
    write_float_forms(model, plan)
    tied = list(tied_tables(model.graph, plan.weights))
    names = turned_names(store_constants(model, plan, parameters), share_tables(model, tied))
    widen_clamps(model, plan, parameters.activations)
    insert_activation_pairs(model, plan, parameters.activations)
    write_integer_forms(model, plan)
    faults = list(structure_faults(model))
    if faults:
        raise RuntimeError(f"the quantized graph is malformed: {'; '.join(faults[:5])}")
    return names
