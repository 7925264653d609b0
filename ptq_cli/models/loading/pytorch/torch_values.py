"""Arrays as PyTorch's tensors and back, and constants as the arguments of a module."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ptq_cli.core.errors import ModelInputError
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.inputs.fixed_inputs import fix_inputs, note_fixed, unknown_input
from ptq_cli.models.inputs.index_range import INDEX_HINT, is_index_out_of_range
from ptq_cli.models.loading.pytorch.export_failure import failing_layer
from ptq_cli.models.loading.source import Axes, Example


def to_tensors(example: Example) -> dict[str, torch.Tensor]:
    """Return the arrays as tensors, which own their memory.

    Raises:
        ModelInputError: PyTorch has no such dtype.
    """
    try:
        return {name: torch.from_numpy(np.array(array)) for name, array in example.items()}
    except TypeError as error:
        raise ModelInputError(
            f"PyTorch does not have the dtype of an input: {error}", hint="convert it"
        ) from error


def to_arrays(value: object) -> list[Array]:
    """Return the tensors of a module's result, however nested, in the exporter's order.

    Edge case:
        numpy has no bfloat16; such a tensor becomes the float32 of the same values.

    Example:
        >>> [array.shape for array in to_arrays((torch.zeros(2), {"a": torch.zeros(3)}))]
        [(2,), (3,)]
    """
    leaves: Sequence[object] = torch.utils._pytree.tree_leaves(value)
    tensors = (leaf.detach().cpu() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return [(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for tensor in tensors]


def batch_axes(tensors: Mapping[str, torch.Tensor], axes: Axes) -> dict[str, int | None]:
    """Return the axis of the samples of each tensor; a scalar has none.

    Example:
        >>> batch_axes({"x": torch.ones(2, 3), "sr": torch.tensor(8)}, {"x": 1})
        {'x': 1, 'sr': None}
    """
    return {name: axes.get(name, 0) if tensor.ndim else None for name, tensor in tensors.items()}


def one_sample(tensors: Mapping[str, torch.Tensor], axes: Axes) -> dict[str, torch.Tensor]:
    """Return the first sample of each tensor, with its axis.

    Example:
        >>> one_sample({"x": torch.ones(2, 3)}, {"x": 1})["x"].shape
        torch.Size([2, 1])
    """
    found = batch_axes(tensors, axes)
    return {
        name: tensor if (axis := found[name]) is None else tensor.narrow(axis, 0, 1)
        for name, tensor in tensors.items()
    }


def as_argument(value: Any, *, tensor: bool) -> Any:
    """Return a fixed input as the argument of a module: a list as a tensor, a number as it is.

    Args:
        value: a number, a boolean or nested lists.
        tensor: the module declares a tensor, so that a number becomes one, too.

    Example:
        >>> as_argument([1, 2], tensor=False), as_argument(2, tensor=False), as_argument(0.5, tensor=True)
        (tensor([1, 2]), 2, tensor(0.5000))
    """
    return torch.tensor(value) if tensor or isinstance(value, list) else value


def require_parameters(values: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Check that the inputs that are fixed are parameters of ``forward``.

    Raises:
        FixedInputError: one is not.
    """
    for name in values:
        if name not in known:
            raise unknown_input(name, known, what)


def fix_exported(model: ir.Model, values: Mapping[str, Any], what: str) -> ir.Model:
    """Make inputs of an exported graph constants; numbers are constants of it already.

    Raises:
        FixedInputError: a value does not fit.
    """
    inputs = {value.name for value in model.graph.inputs}
    fix_inputs(model, {name: value for name, value in values.items() if name in inputs}, what)
    note_fixed(model, values)
    return model


def refused_input(
    error: Exception, module: torch.nn.Module | None, example: Example, what: str
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
