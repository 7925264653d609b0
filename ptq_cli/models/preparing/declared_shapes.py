"""Preparation believes the shapes that the graph computes, and not those that its file declares.

Exporters write shapes of the one example that they traced, names for sizes that are not equal (``?`` for
every unknown one), and ranks of another version of the model. ONNX Runtime only warns of them. A constant
that is folded because of such a shape would change what the model computes.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.models.converting.inline_functions import inline_functions

Size = int | ir.SymbolicDim


def infer_undeclared(model: ir.Model) -> ir.Model:
    """Return the model with functions inlined, and the shapes that follow from its inputs and constants.

    Ensures: what a node computes has no other shape than the inferred one. Only what operators of other
    domains compute keeps the declared one, because nothing else tells it.

    Args:
        model: may be changed in place.
    """
    opset = model.opset_imports.get("", 1)
    nodes = [*model.graph.all_nodes()]
    nodes += [node for function in model.functions.values() for node in function.all_nodes()]
    for node in nodes:
        if node.op_identifier() in model.functions or _is_inferred(node, opset):
            for output in node.outputs:
                output.shape = None
    model = inline_functions(model)
    # One node that cannot be inferred, such as one that could never run, must not stop all others.
    return passes.ShapeInferencePass(check_type=False, strict_mode=False)(model).model


def forget_contradicted(model: ir.Model, seen: Mapping[str, Sequence[int]]) -> bool:
    """Forget what declared shapes say, where the model took or gave others; return whether there was any.

    ONNX Runtime shares memory between values whose sizes have one name, so that such a name must not lie.

    Args:
        model: is changed in place.
        seen: shapes of inputs and outputs in one run, by their names.
    """
    inputs, is_wrong = set(model.graph.inputs), False
    numbers: dict[str, set[int]] = {}
    for value in [*model.graph.inputs, *model.graph.outputs]:
        found = seen.get(value.name or "")
        if found is None or value.shape is None:
            continue
        if value not in inputs and not _agrees(value.shape, found):
            known = list(value.shape) if len(value.shape) == len(found) else [None] * len(found)
            value.shape = ir.Shape(
                [_believed(size, number) for size, number in zip(known, found, strict=True)]
            )
            is_wrong = True
        for size, number in zip(value.shape, found, strict=False):
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                numbers.setdefault(size.value, set()).add(number)
    wrong = {name for name, found in numbers.items() if len(found) > 1}
    if wrong:
        rename_sizes(model, lambda name: None if name in wrong else name)
    return is_wrong or bool(wrong)


def _believed(size: Size | None, found: int) -> Size | None:
    return None if isinstance(size, int) and size != found else size


def _agrees(shape: ir.Shape, found: Sequence[int]) -> bool:
    return len(shape) == len(found) and all(
        size == number for size, number in zip(shape, found, strict=True) if isinstance(size, int)
    )


def rename_sizes(model: ir.Model, name_of: Callable[[str], str | None]) -> None:
    """Give symbolic sizes other names wherever they are.

    Args:
        model: is changed in place.
        name_of: the new name for an old one; None leaves the size without a name.
    """
    values = [value for graph in model.graphs() for value in graph.inputs]
    values += [value for node in model.graph.all_nodes() for value in node.outputs]
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
