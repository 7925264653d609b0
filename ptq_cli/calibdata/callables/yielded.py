"""Turn what a user's callable yields into a batch, or raise an error that says what was expected."""

from typing import Any

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, indexed_names
from ptq_cli.calibdata.dataset.labels import as_labels, find_label
from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError
from ptq_cli.core.tensors import Array

_WANTED = "a dict of arrays by input name, or one array"


def as_batch(value: Any, where: str, source: str, start: int) -> Batch:
    """Make a batch from a yielded value.

    Args:
        value: a dict of arrays by input name, optionally with a ``label``, or one array.
        where: how messages call the batch; they begin with it.
        source: prefix of the samples' names.
        start: number of samples before this batch.

    Raises:
        DataFormatError: it is something else, or an array does not hold numbers.
        DataShapeError: an array has no axis for the samples, or they disagree on their number.
        EmptyDataError: there are no arrays, or no samples.
        LabelError: the labels are not numbers, or not one per sample.

    Example:
        >>> batch = as_batch({"x": np.zeros((2, 3)), "label": np.array([1, 0])}, "batch 0", "data", 4)
        >>> batch.names, batch.labels
        (('data[4]', 'data[5]'), array([1, 0]))
    """
    items = value if isinstance(value, dict) else {ANONYMOUS: value}
    arrays: dict[str, Array] = {}
    for name, item in items.items():
        if not isinstance(name, str):
            raise DataFormatError(
                f"{where} has the key {name!r}, expected the name of an input",
                hint="yield a dict from the names of inputs to arrays",
            )
        arrays[name] = _as_array(item, f"array '{name}' of {where}" if name else where)
    label = find_label(arrays, where)
    label_array = arrays.pop(label) if label is not None else None
    count = _require_one_count(arrays, where)
    labels = None if label_array is None else as_labels(label_array, count, f"array '{label}' of {where}")
    return Batch(arrays, labels, indexed_names(source, start, count))


def _as_array(item: Any, where: str) -> Array:
    # torch's tensors and others have __array__; the dtype of a list would be a guess.
    if not hasattr(item, "__array__"):
        kind = type(item).__name__
        pair = isinstance(item, (tuple, list))
        raise DataFormatError(
            f"{where} is a {kind}, expected {_WANTED}",
            hint="yield {'input name': images, 'label': labels}"
            if pair
            else "make an array with numpy.asarray",
        )
    try:
        array = np.asarray(item)
    except Exception as error:  # the user's type may raise anything; it is reported, not hidden
        raise DataFormatError(
            f"{where} cannot be converted to a numpy array: {type(error).__name__}: {error}",
            hint="for a torch tensor, yield tensor.detach().cpu()",
        ) from error
    if array.dtype.kind not in "biuf":
        raise DataFormatError(
            f"{where} has dtype {array.dtype}, expected numbers", hint="yield an array of numbers"
        )
    if array.ndim == 0:
        raise DataShapeError(
            f"{where} is a single value, expected an axis for the samples", hint="yield whole batches"
        )
    # Copied, because the callable may write to the same array again while this batch is still waiting.
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def _require_one_count(arrays: dict[str, Array], where: str) -> int:
    if not arrays:
        raise EmptyDataError(f"{where} has no input array", hint=f"yield {_WANTED}")
    counts = {name: len(array) for name, array in arrays.items()}
    first, count = next(iter(counts.items()))
    for name, other in counts.items():
        if other != count:
            raise DataShapeError(
                f"arrays of {where} differ in the number of samples: "
                f"'{first}' has {count}, '{name}' has {other}",
                hint="the first axis of every array is the sample",
            )
    if any(array.size == 0 for array in arrays.values()):
        raise EmptyDataError(f"{where} has no values", hint="yield at least one sample per batch")
    return count
