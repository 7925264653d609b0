"""Exports of PyTorch as ONNX: arguments, names, and the layer at which one failed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ptq_cli.core.errors import ExportError, ModelInputError, first_line
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.batch_axes import Axes
from ptq_cli.models.fixed_inputs import fix_inputs, note_fixed, unknown_input
from ptq_cli.models.loading.source import ExampleInputs
from ptq_cli.models.shapes import INDEX_HINT, is_index_out_of_range


def to_tensors(example: ExampleInputs) -> dict[str, torch.Tensor]:
    """Return the arrays as tensors, which own their memory."""
    try:
        return {name: torch.from_numpy(np.array(array)) for name, array in example.items()}
    except TypeError as error:
        raise ModelInputError(
            f"PyTorch does not have the dtype of an input: {error}", hint="convert it"
        ) from error


def to_arrays(value: object) -> list[Array]:
    """Return the tensors of a module's result, however nested, in the exporter's order.

    numpy has no bfloat16; such a tensor becomes the float32 of the same values.
    """
    leaves: Sequence[object] = torch.utils._pytree.tree_leaves(value)
    tensors = (leaf.detach().cpu() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return [(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for tensor in tensors]


def batch_axes(tensors: Mapping[str, torch.Tensor], axes: Axes) -> dict[str, int | None]:
    """Return the axis of the samples of each tensor; a scalar has none."""
    return {name: axes.get(name, 0) if tensor.ndim else None for name, tensor in tensors.items()}


def one_sample(tensors: Mapping[str, torch.Tensor], axes: Axes) -> dict[str, torch.Tensor]:
    """Return the first sample of each tensor, with its axis."""
    found = batch_axes(tensors, axes)
    return {
        name: tensor if (axis := found[name]) is None else tensor.narrow(axis, 0, 1)
        for name, tensor in tensors.items()
    }


def as_argument(value: Any, *, tensor: bool) -> Any:
    """Return a fixed input as a module's argument: a list as a tensor, a number too where one is declared.

    Example:
        >>> as_argument([1, 2], tensor=False), as_argument(2, tensor=False), as_argument(0.5, tensor=True)
        (tensor([1, 2]), 2, tensor(0.5000))
    """
    return torch.tensor(value) if tensor or isinstance(value, list) else value


def require_parameters(values: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Check that the inputs that are fixed are parameters of ``forward``."""
    for name in values:
        if name not in known:
            raise unknown_input(name, known, what)


def chosen_inputs(required: Mapping[str, bool], named: Collection[str]) -> tuple[str, ...]:
    """Return which parameters are inputs: those that are required or named.

    Edge case: None is: the first if only one array has a name, which then is its, or else all.

    Example:
        >>> chosen_inputs({"ids": True, "mask": False, "labels": False}, ["mask"])
        ('ids', 'mask')
        >>> optional = {"ids": False, "mask": False}
        >>> chosen_inputs(optional, ["tokens"]), chosen_inputs(optional, [])
        (('ids',), ('ids', 'mask'))
    """
    found = [name for name, is_required in required.items() if is_required or name in named]
    return tuple(found or list(required)[: 1 if len(named) == 1 else None])


def fix_exported(model: ir.Model, values: Mapping[str, Any], what: str) -> ir.Model:
    """Make inputs of an exported graph constants; numbers are constants of it already."""
    inputs = {value.name for value in model.graph.inputs}
    fix_inputs(model, {name: value for name, value in values.items() if name in inputs}, what)
    note_fixed(model, values)
    return model


def refused_input(
    error: Exception, module: torch.nn.Module | None, example: ExampleInputs, what: str
) -> ModelInputError:
    """Return the error to raise where a module raised on its inputs; the message names the layer."""
    layer = failing_layer(error, module)
    where = f" at layer '{layer}'" if layer else ""
    found = ", ".join(str(TensorSpec(name, array.dtype, array.shape)) for name, array in example.items())
    fit = "check that shape, dtype and layout of the data are those of the model's training data"
    return ModelInputError(
        f"'{what}' does not accept the first batch of the data ({found}): {type(error).__name__}{where}: "
        f"{first_line(error)}",
        hint=INDEX_HINT if is_index_out_of_range(str(error)) else fit,
    )


OUTPUT_SUFFIX = "_output"


def restore_signature(model: ir.Model, program: torch.export.ExportedProgram, inputs: Sequence[str]) -> None:
    """Rename the graph's inputs to ``inputs``, and its outputs to the keys that the module returns.

    An output that is named as an input gets a suffix; outputs without keys keep the exporter's names.
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
    """Return the keys that lead to each output, joined by dots, or nothing where one has no key.

    Positions in lists are among them where keys alone do not tell outputs apart.
    """
    spec = program.call_spec.out_spec
    if spec is None:
        return []
    paths = list(_paths(torch.utils._pytree.tree_unflatten(list(range(spec.num_leaves)), spec)))
    keys = [".".join(key for key in path if isinstance(key, str)) for path in paths]
    if not all(keys):
        return []
    return keys if len(set(keys)) == len(keys) else [".".join(map(str, path)) for path in paths]


def _paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys and positions that lead to each leaf; classes such as ModelOutput are mappings."""
    children: Mapping[Any, object] | None = None
    if isinstance(value, Mapping):
        children = {str(key): item for key, item in value.items()}
    elif is_dataclass(value):
        children = {item.name: getattr(value, item.name) for item in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        children = dict(zip(value._fields, value, strict=True))
    elif isinstance(value, (list, tuple)):
        children = dict(enumerate(value))
    if children is None:
        if value is not None:
            yield path
        return
    for key, item in children.items():
        yield from _paths(item, (*path, key))


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


EXPORT_OPSET = 20  # Gelu came with 20; QuantizeLinear with an axis needs 13


def program_to_onnx(program: torch.export.ExportedProgram, inputs: Sequence[str]) -> ir.Model:
    """Return a program as ONNX, whose inputs have these names."""
    exported = torch.onnx.export(program, dynamo=True, opset_version=EXPORT_OPSET, verbose=False)
    if exported is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    restore_signature(exported.model, program, inputs)
    return exported.model


def export_error(error: BaseException, module: torch.nn.Module | None, what: str) -> ExportError:
    """Return the error to raise when PyTorch could not export a model; the traceback tells its layer."""
    layer = failing_layer(error, module)
    where = f" at layer '{layer}'" if layer else ""
    *_, cause = _chain(error)
    return ExportError(
        f"'{what}' cannot be exported to ONNX{where}: {type(cause).__name__}: {first_line(cause)}",
        hint="use operations that torch.export supports there (no control flow on tensor values, no operator "
        "without an ONNX form), or export the model to ONNX yourself and pass that file",
    )


def failing_layer(error: BaseException, module: torch.nn.Module | None) -> str:
    """Return the path of the innermost submodule in the traceback, or an empty string.

    The exporters call the module's own ``forward``, so that each frame's ``self`` is a submodule; where a
    translation fails later, the exporter's frame holds the graph node with its module stack.
    """
    names = {id(child): name for name, child in module.named_modules()} if module is not None else {}
    found = ""
    for frame_locals in _frames(error):
        name = names.get(id(frame_locals.get("self")), "")
        node = frame_locals.get("node")
        if isinstance(node, torch.fx.Node):
            stack = node.meta.get("nn_module_stack") or {}
            name = next((path for path, _ in reversed(stack.values())), name)
        found = name or found
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _frames(error: BaseException) -> Iterator[dict[str, object]]:
    for link in _chain(error):
        traceback: TracebackType | None = link.__traceback__
        while traceback is not None:
            yield traceback.tb_frame.f_locals
            traceback = traceback.tb_next
