"""Inputs of rank 0: one value for all samples of a batch."""

import numpy as np

from ptq_cli.core.errors import DataShapeError
from ptq_cli.core.tensors import Array, TensorSpec


def scalar_of(array: Array, spec: TensorSpec, where: str) -> Array:
    """Return the single value of a scalar input in a batch.

    Args:
        array: one value, or one for each sample of the batch.
        spec: the input.
        where: of the batch, for messages.

    Edge case:
        A number of another type becomes the input's type if that keeps its value: Python has one type of
        integers.

    Raises:
        DataShapeError: the values of the batch differ.

    Example:
        >>> scalar_of(np.array([8, 8]), TensorSpec("sr", np.dtype("int32"), ()), "it")
        array(8, dtype=int32)
    """
    if array.ndim > 1 or not array.size:
        return array  # Its shape is refused with that of the input.
    value: Array = array.reshape(-1)[:1].reshape(())
    if not np.array_equal(array, np.broadcast_to(value, array.shape), equal_nan=array.dtype.kind == "f"):
        raise DataShapeError(
            f"input '{spec.name}' is a single value, but the values of a batch differ in {where}: "
            f"{', '.join(map(str, np.unique(array)[:3]))}",
            hint=f"--batch-size 1 gives each sample its own value, and --input {spec.name}=VALUE fixes it",
        )
    return _as_type(value, spec.dtype)


def _as_type(value: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return a number in another type, or as it is if it would change."""
    if (
        value.dtype.kind not in "iuf"
        or dtype.kind not in "iuf"
        or (value.dtype.kind, dtype.kind) == ("f", "i")
    ):
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = value.astype(dtype)
    return cast if dtype.kind == "f" or int(cast) == int(value) else value
