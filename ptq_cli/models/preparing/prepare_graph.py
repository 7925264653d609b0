"""The exported graph is cleaned by its passes, in their order, before anything is measured on it.

What is measured afterwards is what ships: calibration, placement and evaluation all see this graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.memory import no_cycle_search
from ptq_cli.models.files.budgets import require_possible_steps, require_possible_values
from ptq_cli.models.graph_reading import every_node, remove_unused
from ptq_cli.models.opset import WRITTEN_OPSET, opset_of, raise_opset
from ptq_cli.models.pair_operators import QUANTIZING
from ptq_cli.models.preparing.half import widen_half
from ptq_cli.models.preparing.interface import Interface, infer_undeclared, name_graph
from ptq_cli.models.preparing.passes.activations import GELU, HARD_SWISH, SILU
from ptq_cli.models.preparing.passes.known_branch import KNOWN_BRANCH
from ptq_cli.models.preparing.passes.matmul_forms import EINSUM, MATMUL_LEFT, MATMUL_MATRIX
from ptq_cli.models.preparing.passes.means import LAYER_NORM, MEAN_POOL, RECIPROCAL
from ptq_cli.models.preparing.passes.merged import (
    BATCH_NORM,
    BIAS_ADD,
    FACTOR,
    GEMM_FACTORS,
    HARD_SIGMOID,
    MATMUL_FACTOR,
)
from ptq_cli.models.preparing.passes.portable_forms import CASTS, NAMED_AXES, UNIT_DILATIONS
from ptq_cli.models.preparing.rewriting import RewritePass, run_passes
from ptq_cli.models.preparing.simplify import drop_identities, own_nested_outputs, simplify
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.models.shapes import all_known, infer_shapes

FOLDING = (GEMM_FACTORS, BATCH_NORM, BIAS_ADD, FACTOR, MATMUL_FACTOR)
FUSING = (LAYER_NORM, GELU, HARD_SWISH, SILU)
_PRODUCTS = (EINSUM, MATMUL_LEFT, MATMUL_MATRIX)
REST: tuple[RewritePass, ...] = (
    CASTS,
    NAMED_AXES,
    UNIT_DILATIONS,
    *_PRODUCTS,
    MEAN_POOL,
    *FOLDING,
    *FUSING,
    HARD_SIGMOID,
    RECIPROCAL,
)
PASSES = (KNOWN_BRANCH, *REST)  # a branch that is taken is simplified before the others run


NEWEST_FOR_FORMS = 20  # Gelu's; exported PyTorch models are written in it
FORM_TERMS = ("Erf", "Tanh", "Sqrt", "Clip", "HardSigmoid")  # a written-out form has one
_OLDEST_IR_VERSION = 7  # of opset 12


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A prepared model, and what was done to it.

    Attributes:
        nodes_before, nodes: how many nodes the main graph had before, and has now.
        simplified: by how many nodes constant folding and onnxscript's rules made it smaller.
        applied: how often each pass was applied, by the pass's name, in order; those that were not too.
        quantizing: how many nodes were there already that quantize or dequantize; they were kept.
        widened: the types of 16 bits that it computed in, where it computes in float32 now.
        is_declared: whether outputs have sizes that are not inferred, but declared by the file alone.
    """

    model: ir.Model
    opset_before: int
    opset: int
    nodes_before: int
    nodes: int
    simplified: int
    applied: Mapping[str, int]
    quantizing: int
    widened: str
    is_declared: bool

    @property
    def is_changed(self) -> bool:
        """Tell whether operators were written that the source does not have."""
        return bool(self.widened) or self.opset != self.opset_before or any(self.applied.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, a sentence each."""
        notes = []
        if self.opset != self.opset_before:
            notes.append(f"converted from opset {self.opset_before} to {self.opset}")
        if self.widened:
            kept = "inputs and outputs their type"
            if "bfloat16" in self.widened:
                kept = "inputs and outputs in bfloat16 become float32, because numpy has no bfloat16"
            notes.append(f"{self.widened} is computed in float32: weights keep their values, {kept}")
        if self.quantizing:
            notes.append(f"{self.quantizing} nodes already quantize or dequantize, and are kept as they are")
        return tuple(notes)


def prepare(model: ir.Model, what: str, *, is_traced: bool = False) -> ir.Model:
    """Return the model prepared; see ``prepare_model``."""
    return prepare_model(model, what, is_traced=is_traced).model


@no_cycle_search()
def prepare_model(model: ir.Model, what: str, *, is_traced: bool = False) -> Prepared:
    """Return the model with constants folded, the passes applied, layers named and shapes inferred.

    Requires: a model that the checker accepts, of opset 7 or later, which is changed in place where the
    passes can. With ``is_traced`` PyTorch's exporter has just proven the shapes that it declares; a file's
    are inferred.

    Ensures: every constant is an initializer, no initializer is an input, the other inputs and the outputs
    keep their names, every node and value has a name of its own, nothing tells of the machine that exported
    it, and the opset is 13 or later. The checker is asked when the result is stored.
    """
    opset_before, nodes_before = opset_of(model), model.graph.num_nodes()
    interface = Interface.of(model.graph)
    quantizing = sum(node.op_type in QUANTIZING for node in every_node(model.graph))
    with quiet_exporter():
        if not is_traced:
            interface.name_sizes_apart(model.graph)
            model = infer_undeclared(model)
        model, branches = _with_known_branches(raise_opset(model, WRITTEN_OPSET, what), what)
        simplified = max(nodes_before - model.graph.num_nodes(), 0)  # An inlined function adds nodes.
        if not all_known(model.graph):
            infer_shapes(model)
        widened = widen_half(model)
        model = _with_operators_of_forms(model, what)
        applied = {KNOWN_BRANCH.name: branches, **run_passes(model, REST)}
        model = _clean(model)
    is_declared = interface.restore(model)
    # Before it, each initializer had to be an input as well.
    model.ir_version = max(model.ir_version, _OLDEST_IR_VERSION)
    name_graph(model)
    with quiet_exporter():
        infer_shapes(model)
        model = _without_notes(model)
    return Prepared(
        model=model,
        opset_before=opset_before,
        opset=opset_of(model),
        nodes_before=nodes_before,
        nodes=model.graph.num_nodes(),
        simplified=simplified,
        applied=applied,
        quantizing=quantizing,
        widened=widened,
        is_declared=is_declared,
    )


def _with_known_branches(model: ir.Model, what: str) -> tuple[ir.Model, int]:
    """Simplify, and take branches of constant conditions; what such a branch computes may be the next one."""
    model, taken = _simplified(model, what), 0
    while count := run_passes(model, [KNOWN_BRANCH])[KNOWN_BRANCH.name]:
        taken += count
        model = _simplified(model, what)
    return model, taken


def _simplified(model: ir.Model, what: str) -> ir.Model:
    model = simplify(model)
    require_possible_values((value for node in every_node(model.graph) for value in node.outputs), what)
    require_possible_steps(model.graph, what)
    return model


def _with_operators_of_forms(model: ir.Model, what: str) -> ir.Model:
    """Raise the opset where a form that is written out has an operator in a newer one, and only there."""
    # SiLU is not a reason: its operator is of opset 24, which few runtimes know. A model that cannot be
    # converted keeps its forms.
    opset = opset_of(model)
    newer = [item for item in FUSING if opset < item.opset <= NEWEST_FOR_FORMS]
    if not newer or not any(node.op_type in FORM_TERMS for node in every_node(model.graph)):
        return model
    trial = model.clone()
    found = run_passes(trial, newer, at_any_opset=True)
    wanted = max((item.opset for item in newer if found[item.name]), default=opset)
    if wanted == opset:
        return model
    try:
        converted = raise_opset(model.clone(), wanted, what)
    except InvalidOnnxError:
        return model
    model = simplify(converted)
    infer_shapes(model)
    return model


def _without_notes(model: ir.Model) -> ir.Model:
    # The exporter's notes hold stack traces with paths of the machine it ran on, and weigh a tenth of a file.
    model = passes.ClearMetadataAndDocStringPass()(model).model
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in every_node(model.graph) for value in node.outputs]
    for value in values:
        value.metadata_props.clear()
    return model


def _clean(model: ir.Model) -> ir.Model:
    drop_identities(model)
    remove_unused(model)
    own_nested_outputs(model)
    for last in (passes.OutputFixPass(), passes.TopologicalSortPass()):
        model = last(model).model
    return model
