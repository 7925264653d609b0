"""Names and shapes of inputs and outputs, and the user's names of layers, kept while passes change the graph.

The exporter records each node's module path in its metadata, and names the values it makes up
(``val_18``, ``getitem_3``). Here nodes are named for their module, and their outputs for the node, so that
a table of layers reads as the model's source does.

Preparation believes the shapes that the graph computes, and not those that its file declares: exporters write
shapes of the one example that they traced, names for sizes that are not equal, and ranks of another version
of the model. A constant that is folded because of such a shape would change what the model computes.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import onnx
import onnx_ir as ir

from ptq_cli.models.graph_reading import FreshNames, every_graph, every_node, every_value, labeled_graphs
from ptq_cli.models.opset import inline_functions
from ptq_cli.models.shapes import infer_shapes

SCOPES = "pkg.torch.onnx.name_scopes"
WEIGHT_SUFFIX = ".weight"
SCOPE_TEXT_LIMIT = 10_000
PLACEHOLDER_SCOPE = "_empty_nn_module_stack_from_metadata_hook"  # torch.export's, where it lost track
MADE_UP_NODE = re.compile(r"node(_\w+)?")
MADE_UP_CONSTANT = re.compile(r"(?:val|_val|const)_\d+(?:_\d+)*")


def name_graph(model: ir.Model) -> None:
    """Give every node and value a name of its own, from the module path where known.

    Graph inputs and outputs keep their names. A value that has a graph output's name without being it is
    renamed, so that a module called ``embedding`` beside an output ``embedding`` does no harm. A node of a
    nested graph has the path of that graph in its name: ``gate/then_branch/fc``.
    """
    graph = model.graph
    fixed = {value.name or "" for value in (*graph.inputs, *graph.outputs)}
    # A nested graph sees the names around it, so that its own must not come up there.
    nested = Counter(value.name or "" for value in every_value(graph) if value.graph is not graph)
    nodes, values = FreshNames(set()), FreshNames(fixed | set(nested) | set(graph.initializers))
    kept = {id(value) for value in (*graph.inputs, *graph.outputs)}
    _name_initializers(graph, values, fixed)
    for node in graph:
        made_up = _is_made_up(node)
        node.name = nodes.claim(_own_name(node))
        for index, output in enumerate(node.outputs):
            if id(output) in kept:
                continue
            wanted = node.name if len(node.outputs) == 1 else f"{node.name}.{index}"
            output.name = values.claim(wanted if made_up else output.name or wanted)
    _name_nested(graph, nodes, values, {name for name, count in nested.items() if count > 1})
    _name_made_up_constants(graph, values)


def _name_nested(graph: ir.Graph, nodes: FreshNames, values: FreshNames, repeated: Collection[str]) -> None:
    """Name what graphs nested in a graph hold; two branches may have used one name for two values."""
    for owner in graph:
        for label, inner in labeled_graphs(owner).items():
            path = f"{owner.name}/{label}/"
            for value in inner.inputs:
                if value.name in repeated:
                    value.name = values.claim(f"{path}{value.name}")
            for node in inner:
                made_up, own = _is_made_up(node), _own_name(node)
                node.name = nodes.claim(own if own.startswith(path) else f"{path}{own}")
                for index, output in enumerate(node.outputs):
                    wanted = node.name if len(node.outputs) == 1 else f"{node.name}.{index}"
                    if made_up or not output.name:
                        output.name = values.claim(wanted)
                    elif output.name in repeated:
                        output.name = values.claim(f"{path}{output.name}")
            _name_nested(inner, nodes, values, repeated)


def _is_made_up(node: ir.Node) -> bool:
    """Return whether a node's name says nothing of the model, or less than its module's path does."""
    return module_path(node) is not None or not node.name or MADE_UP_NODE.fullmatch(node.name) is not None


def _own_name(node: ir.Node) -> str:
    return _layer_name(node, module_path(node) or "") if _is_made_up(node) else node.name or ""


def module_path(node: ir.Node) -> str | None:
    """Return the path of the module that a node came from, or None if the node does not tell.

    The root module's own operations have the path ``""``.
    """
    scopes = node.metadata_props.get(SCOPES)
    if scopes is not None and len(scopes) < SCOPE_TEXT_LIMIT:
        try:
            parsed = ast.literal_eval(scopes)
        except (ValueError, SyntaxError):
            return None
        if not isinstance(parsed, list) or len(parsed) < 2:
            return None
        return "" if parsed[-2] == PLACEHOLDER_SCOPE else str(parsed[-2])
    if node.name and node.name.startswith("/"):
        return _torchscript_path(node.name)
    return None


def _torchscript_path(name: str) -> str:
    # The TorchScript exporter writes /encoder/encoder.0/attention/MatMul: a part may repeat its parent.
    path = ""
    for part in name.strip("/").split("/")[:-1]:
        last = path.rpartition(".")[2] if "." in path else path
        if last and part.startswith(f"{last}."):
            path = path[: len(path) - len(last)] + part
        else:
            path = f"{path}.{part}" if path else part
    return path


def _layer_name(node: ir.Node, path: str) -> str:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if (
        weight is not None
        and weight.is_initializer()
        and node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    ):
        name = weight.name or ""
        single = len(weight.uses()) == 1
        return (
            name.removesuffix(WEIGHT_SUFFIX)
            if single and name.endswith(WEIGHT_SUFFIX)
            else path or node.op_type
        )
    return f"{path}/{node.op_type}" if path else node.op_type


def _name_initializers(graph: ir.Graph, values: FreshNames, fixed: set[str]) -> None:
    # The names of all initializers are taken already, so that none is renamed to another's.
    for value in list(graph.initializers.values()):
        if value.is_graph_output():
            continue
        wanted = value.name or "constant"
        uses = value.uses()
        if "." not in wanted and len(uses) == 1:
            consumer, index = next(iter(uses))
            path = module_path(consumer)
            if path and index == 1 and consumer.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
                wanted = f"{path}{WEIGHT_SUFFIX}"
        if wanted != value.name or wanted in fixed:
            value.name = values.claim(wanted)


def _name_made_up_constants(graph: ir.Graph, values: FreshNames) -> None:
    # They are named last, because they are named for the node that reads them.
    for value in list(graph.initializers.values()):
        uses = value.uses()
        if uses and MADE_UP_CONSTANT.fullmatch(value.name or "") and not value.is_graph_output():
            value.name = values.claim(f"{next(iter(uses)).node.name}.constant")


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
