"""The exported graph is cleaned before anything is measured on it.

What is measured afterwards is what ships: calibration, placement and evaluation all see this graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.memory import no_cycle_search
from ptq_cli.models.files.budgets import require_possible_steps
from ptq_cli.models.files.possible_sizes import require_possible_values
from ptq_cli.models.graph_reading import every_graph, every_node, remove_unused
from ptq_cli.models.inlining import inline_functions
from ptq_cli.models.opset import WRITTEN_OPSET, opset_of, raise_opset
from ptq_cli.models.pair_operators import QUANTIZING
from ptq_cli.models.parity import quiet_exporter
from ptq_cli.models.preparing.half import widen_half
from ptq_cli.models.preparing.layer_names import drop_identities, name_graph, own_nested_outputs
from ptq_cli.models.preparing.passes.known import KNOWN_BRANCH
from ptq_cli.models.preparing.passes.registry import FUSING, REST
from ptq_cli.models.preparing.rewriting import run_passes
from ptq_cli.models.preparing.simplify import simplify
from ptq_cli.models.shapes import all_known, infer_shapes

# Preparation believes the shapes that the graph computes, and not those that its file declares.
#
# Exporters write shapes of the one example that they traced, names for sizes that are not equal (``?`` for
# every unknown one), and ranks of another version of the model. ONNX Runtime only warns of them. A constant
# that is folded because of such a shape would change what the model computes.


Size = int | ir.SymbolicDim


def infer_undeclared(model: ir.Model) -> ir.Model:
    """Return the model with functions inlined, and the shapes that follow from its inputs and constants.

    Ensures: what a node computes has no other shape than the inferred one. Only what operators of other
    domains compute keeps the declared one, because nothing else tells it.
    """
    opset = model.opset_imports.get("", 1)
    nodes = [*every_node(model.graph)]
    nodes += [node for function in model.functions.values() for node in every_node(function)]
    for node in nodes:
        if node.op_identifier() in model.functions or _is_inferred(node, opset):
            for output in node.outputs:
                output.shape = None
    model = inline_functions(model)
    infer_shapes(model, strict=False)
    return model


def forget_contradicted(model: ir.Model, seen: Mapping[str, Sequence[int]]) -> bool:
    """Forget what declared shapes say, where a run took or gave others; return whether there was any.

    ONNX Runtime shares memory between values whose sizes have one name, so that such a name must not lie.
    """
    inputs, is_wrong = set(model.graph.inputs), False
    numbers: dict[str, set[int]] = {}
    for value in [*model.graph.inputs, *model.graph.outputs]:
        found = seen.get(value.name or "")
        if found is None or value.shape is None:
            continue
        if value not in inputs and not _agrees(value.shape, found):
            known = list(value.shape) if len(value.shape) == len(found) else [None] * len(found)
            both = zip(known, found, strict=True)
            value.shape = ir.Shape(
                [None if isinstance(size, int) and size != n else size for size, n in both]
            )
            is_wrong = True
        for size, number in zip(value.shape, found, strict=False):
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                numbers.setdefault(size.value, set()).add(number)
    wrong = {name for name, found in numbers.items() if len(found) > 1}
    if wrong:
        rename_sizes(model, lambda name: None if name in wrong else name)
    return is_wrong or bool(wrong)


def _agrees(shape: ir.Shape, found: Sequence[int]) -> bool:
    return len(shape) == len(found) and all(
        size == number for size, number in zip(shape, found, strict=True) if isinstance(size, int)
    )


def rename_sizes(model: ir.Model, name_of: Callable[[str], str | None]) -> None:
    """Give symbolic sizes other names wherever they are; None leaves a size without a name."""
    values = [value for graph in every_graph(model.graph) for value in graph.inputs]
    values += [value for node in every_node(model.graph) for value in node.outputs]
    for value in values:
        if value.shape is not None and any(isinstance(size, ir.SymbolicDim) for size in value.shape):
            value.shape = ir.Shape([_renamed(size, name_of) for size in value.shape])


def _renamed(size: Size, name_of: Callable[[str], str | None]) -> int | str | None:
    if isinstance(size, int):
        return size
    return name_of(size.value) if size.value is not None else None


def _is_inferred(node: ir.Node, opset: int) -> bool:
    """Return whether ONNX knows how an operator's outputs follow from its inputs."""
    if node.domain:
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_type_and_shape_inference_function)


# Inputs and outputs keep their names, whatever the passes made of the values behind them.
#
# Two outputs may have become one value: equal operators are merged, and an Identity goes. onnx_ir then puts
# an Identity before one of them, under a name that it makes up; and it renames an input that is an output
# too. Whoever calls the model asks by the names that the file has.


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Names and shapes that a caller sees: outputs, and inputs that no constant feeds.

    What a model says of the outputs' shapes, inference does not always find again.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_shapes: tuple[ir.Shape | None, ...]
    shapes: tuple[ir.Shape | None, ...]

    @classmethod
    def of(cls, graph: ir.Graph) -> Self:
        """Return the interface of a model's main graph."""
        inputs = [value for value in graph.inputs if value.name not in graph.initializers]
        return cls(
            inputs=tuple(value.name or "" for value in inputs),
            outputs=tuple(value.name or "" for value in graph.outputs),
            input_shapes=tuple(_copied(value.shape) for value in inputs),
            shapes=tuple(_copied(value.shape) for value in graph.outputs),
        )

    def name_sizes_apart(self, graph: ir.Graph) -> None:
        """Give each symbolic size of an input a name of its own until ``restore``.

        Two sizes of one name need not be equal: some exporters write ``?`` for all.
        """
        inputs = {value.name: value for value in graph.inputs}
        for index, (name, shape) in enumerate(zip(self.inputs, self.input_shapes, strict=True)):
            if shape is not None:
                sizes = (
                    size if isinstance(size, int) else _apart(index, axis) for axis, size in enumerate(shape)
                )
                inputs[name].shape = ir.Shape(sizes)

    def restore(self, model: ir.Model) -> bool:
        """Give inputs and outputs their names again, and the shapes that inference does not contradict.

        Requires: as many inputs and outputs as there were, none of the inputs an initializer. An output of
        the name of an input is that input, and one that was there before is the same value. Returns whether
        outputs have sizes that only the file tells: they may be wrong.
        """
        graph = model.graph
        for value, name in zip(graph.inputs, self.inputs, strict=True):
            if value.name != name:
                value.name = name
        given = dict(zip(self.inputs, graph.inputs, strict=True))
        for index, name in enumerate(self.outputs):
            value = graph.outputs[index]
            wanted = given.setdefault(name, value)
            if wanted is not value:
                _hand_out(graph, index, wanted)
            elif value.name != name:
                value.name = name
        self._restore_sizes(model)
        names = {
            size.value for shape in self.input_shapes for size in shape or () if not isinstance(size, int)
        }
        told = [
            _declare(value, shape, names)
            for value, shape in zip(graph.outputs, self.shapes, strict=True)
            if shape is not None and not value.is_graph_input()
        ]
        return any(told)

    def _restore_sizes(self, model: ir.Model) -> None:
        sizes = {
            _apart(index, axis): None if isinstance(size, int) else size.value
            for index, shape in enumerate(self.input_shapes)
            for axis, size in enumerate(shape or ())
        }
        rename_sizes(model, lambda name: sizes.get(name, name))
        for value, shape in zip(model.graph.inputs, self.input_shapes, strict=True):
            value.shape = _copied(shape)


def _apart(index: int, axis: int) -> str:
    return f"size_of_input_{index}_axis_{axis}"


def _copied(shape: ir.Shape | None) -> ir.Shape | None:
    return shape.copy() if shape is not None else None


def _declare(value: ir.Value, declared: ir.Shape, inputs: set[str | None]) -> bool:
    """Complete an output's shape by what is declared; tell whether sizes or the rank are from there alone."""
    found = value.shape
    if found is None:
        value.shape = declared.copy()
        return True
    if len(found) != len(declared):
        return False
    sizes = [
        inferred if isinstance(inferred, int) or inferred.value in inputs - {None} else said
        for inferred, said in zip(found, declared, strict=True)
    ]
    value.shape = ir.Shape(sizes)
    return any(isinstance(size, int) and size != old for size, old in zip(sizes, found, strict=True))


def _hand_out(graph: ir.Graph, index: int, value: ir.Value) -> None:
    """Make a value an output itself, in place of the Identity of it that is one."""
    alias = graph.outputs[index]
    graph.outputs[index] = value
    node = alias.producer()
    alias.replace_all_uses_with(value)
    if node is not None and not alias.is_graph_output():
        graph.remove(node, safe=True)


NEWEST_FOR_FORMS = 20
"""Gelu's; exported PyTorch models are written in it."""
FORM_TERMS = ("Erf", "Tanh", "Sqrt", "Clip", "HardSigmoid")
"""A form that is written out has one of them."""
OLDEST_IR_VERSION = 7
"""That of opset 12."""


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
        """What a user should know of it, a sentence each."""
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
    model.ir_version = max(model.ir_version, OLDEST_IR_VERSION)
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
    """Raise the opset where a form that is written out has an operator in a newer one, and only there.

    SiLU is not a reason: its operator is of opset 24, which few runtimes know. A model that cannot be
    converted keeps its forms.
    """
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
