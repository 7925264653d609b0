"""Layers keep the names that the user gave them: the module path in PyTorch.

The exporter records each node's module path in its metadata, and names the values it makes up
(``val_18``, ``getitem_3``). Here nodes are named for their module, and their outputs for the node, so that
a table of layers reads as the model's source does.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_value, labeled_graphs
from ptq_cli.models.names import FreshNames

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
