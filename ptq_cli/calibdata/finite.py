"""Find NaN and Inf in the data before the model runs on them."""

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.core.errors import NonFiniteDataError
from ptq_cli.core.tensors import Array


def require_finite(batch: Batch) -> None:
    """Check that all floats of a batch are finite.

    Edge case:
        Integers and booleans are always finite.

    Raises:
        NonFiniteDataError: one is NaN or Inf; the message names the input, the sample and the index in it.

    Example:
        >>> require_finite(Batch({"x": np.array([[0.0], [np.nan]])}, None, ("x.npy[0]", "x.npy[1]")))
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.NonFiniteDataError: PTQ-DATA-008: input 'x' holds nan at [0] of sample 'x.npy[1]'
        hint: fix the sample, remove it, or pass --allow-nonfinite
    """
    for name, array in batch.inputs.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        if _has_finite_sum(array):
            continue
        finite = np.isfinite(array)
        if finite.all():
            continue
        first = np.unravel_index(int(np.argmin(finite)), array.shape)
        inside, axis = [int(index) for index in first], batch.axes.get(name, 0)
        sample = inside.pop(axis) if axis is not None else 0
        raise NonFiniteDataError(
            f"input '{name}' holds {array[first]} at {inside} of sample '{batch.names[sample]}'",
            hint="fix the sample, remove it, or pass --allow-nonfinite",
        )


def _has_finite_sum(array: Array) -> bool:
    """Tell whether the sum is finite: then all values are, and the test needs no temporary array."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()))
