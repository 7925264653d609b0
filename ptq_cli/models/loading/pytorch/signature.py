"""Inputs and outputs keep the names that the module's ``forward`` gives them.

The exporter renames an input that is returned as it is (``x`` becomes ``x_orig``), and names outputs for
PyTorch's operators (``linear_1``), also where the module returns a dictionary with names of its own.
"""

from collections.abc import Sequence

import onnx_ir as ir
import torch

OUTPUT_SUFFIX = "_output"


def restore_signature(model: ir.Model, program: torch.export.ExportedProgram, inputs: Sequence[str]) -> None:
    """Rename the graph's inputs to ``inputs``, and its outputs to the keys that the module returns.

    Edge case:
        An output that is named as an input gets a suffix; outputs without keys keep the exporter's names.

    Args:
        model: is changed in place.
        program: what it was exported from.
        inputs: the names that data come with.
    """
    _restore_inputs(model.graph, inputs)
    keys = output_keys(program)
    outputs = list(model.graph.outputs)
    if len(keys) == len(outputs) == len({id(value) for value in outputs}):
        for value, key in zip(outputs, keys, strict=True):
            # A constant that is an output is renamed later, with the node that then makes it.
            if not value.is_initializer() and not value.is_graph_input():
                value.name = key
    taken = {value.name for value in model.graph.inputs}
    for value in outputs:
        if value.name in taken and not value.is_graph_input():
            value.name = f"{value.name}{OUTPUT_SUFFIX}"


def output_keys(program: torch.export.ExportedProgram) -> list[str]:
    """Return the key under which the module returns each output, or nothing where one has no key.

    Example:
        >>> class Heads(torch.nn.Module):
        ...     def forward(self, x):
        ...         return {"logits": x + 1, "aux": {"depth": x * 2}}
        >>> output_keys(torch.export.export(Heads(), (torch.ones(2),)))
        ['logits', 'aux.depth']
    """
    pytree = torch.utils._pytree
    spec = program.call_spec.out_spec
    if spec is None:
        return []
    numbered = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(numbered)[0]]
    names = [".".join(filter(None, map(_key_text, path))) for path in paths]
    return names if all(names) else []


def _key_text(key: object) -> str:
    pytree = torch.utils._pytree
    if isinstance(key, pytree.MappingKey):
        return str(key.key)
    return key.name if isinstance(key, pytree.GetAttrKey) else ""


def _restore_inputs(graph: ir.Graph, inputs: Sequence[str]) -> None:
    found = {value.name for value in graph.inputs}
    lost = [name for name in inputs if name not in found]
    renamed = [value for value in graph.inputs if value.name not in inputs]
    if len(lost) != len(renamed):
        return
    for value, name in zip(renamed, lost, strict=True):
        for output in graph.outputs:
            if output.name == name and output is not value:
                output.name = f"{name}{OUTPUT_SUFFIX}"
        value.name = name
