"""Layers keep the names that the user gave them: the module path in PyTorch.

The exporter records each node's module path in its metadata, and names the values it makes up
(``val_18``, ``getitem_3``). Here nodes are named for their module, and their outputs for the node, so that
a table of layers reads as the model's source does.
"""

import ast

import onnx_ir as ir

SCOPES = "pkg.torch.onnx.name_scopes"
WEIGHT_SUFFIX = ".weight"
SCOPE_TEXT_LIMIT = 10_000


class _Names:
    """Hands out each name once."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def claim(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def name_graph(model: ir.Model) -> None:
    """Give every node and value of the main graph a name of its own, from the module path where known.

    Graph inputs and outputs keep their names. A value that has a graph output's name without being it is
    renamed, so that a module called ``embedding`` beside an output ``embedding`` does no harm.
    """
    graph = model.graph
    fixed = {value.name or "" for value in (*graph.inputs, *graph.outputs)}
    nodes, values = _Names(set()), _Names(set(fixed))
    kept = {id(value) for value in (*graph.inputs, *graph.outputs)}
    _name_initializers(graph, values)
    for node in graph:
        path = module_path(node)
        if path is None:
            node.name = nodes.claim(node.name or node.op_type)
        else:
            node.name = nodes.claim(_layer_name(node, path))
        for index, output in enumerate(node.outputs):
            if id(output) in kept:
                continue
            wanted = node.name if len(node.outputs) == 1 else f"{node.name}.{index}"
            output.name = values.claim(wanted if path is not None else output.name or wanted)


def module_path(node: ir.Node) -> str | None:
    """Return the path of the module that a node came from, or None if the node does not tell.

    Edge case:
        The root module's own operations have the path ``""``.
    """
    scopes = node.metadata_props.get(SCOPES)
    if scopes is not None and len(scopes) < SCOPE_TEXT_LIMIT:
        try:
            parsed = ast.literal_eval(scopes)
        except (ValueError, SyntaxError):
            return None
        return str(parsed[-2]) if isinstance(parsed, list) and len(parsed) > 1 else None
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


def _name_initializers(graph: ir.Graph, values: _Names) -> None:
    for value in list(graph.initializers.values()):
        wanted = value.name or "constant"
        uses = value.uses()
        if "." not in wanted and len(uses) == 1:
            consumer, index = next(iter(uses))
            path = module_path(consumer)
            if path and index == 1 and consumer.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
                wanted = f"{path}{WEIGHT_SUFFIX}"
        value.name = values.claim(wanted)
