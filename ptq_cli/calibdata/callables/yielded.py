"""Turn what a user's code yields into a batch, or raise an error that says what was expected."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, POSITION, indexed_names
from ptq_cli.calibdata.dataset.item import batch_of
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES, find_label
from ptq_cli.core.errors import DataFormatError, EmptyDataError
from ptq_cli.core.tensors import Array

_WANTED = "a dict of arrays by input name, a tuple of arrays, or one array"
Arrays = dict[str, Array]


def as_arrays(value: Any, where: str) -> tuple[Arrays, Array | None]:
    """Return the arrays of a yielded value by name, and its labels where it names them.

    Args:
        value: arrays by input name, optionally with a ``label``; one array; or a tuple of arrays in the order
            of the model's inputs, of which the last may be the labels. The first of two may be a dict or a
            tuple itself, and the second is the labels then.
        where: how messages call the batch; they begin with it.

    Raises:
        DataFormatError: it is something else, or an array does not hold numbers.
        EmptyDataError: there are no arrays.
        LabelError: there are two arrays of labels.

    Example:
        >>> arrays, labels = as_arrays((np.zeros((2, 3)), np.array([1, 0])), "batch 0")
        >>> list(arrays), labels
        (['#0', '#1'], None)
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    label = None
    if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], (Mapping, tuple, list)):
        value, second = value
        label = _as_array(second, f"the label of {where}")
    if isinstance(value, Mapping):
        arrays = _named(value, where)
    elif isinstance(value, (tuple, list)):
        arrays = _placed(value, where)
    else:
        arrays = {ANONYMOUS: _as_array(value, where, is_part=False)}
    named = find_label([*arrays, *([LABEL_NAMES[0]] if label is not None else [])], where)
    if named in arrays:
        label = arrays.pop(named)
    if not arrays:
        raise EmptyDataError(f"{where} has no input array", hint=f"yield {_WANTED}")
    return arrays, label


def as_batch(
    value: Any,
    where: str,
    source: str,
    start: int,
    axes: Mapping[str, int | None] | None = None,
    *,
    singles: bool = False,
) -> Batch:
    """Make a batch from a yielded value.

    Args:
        value: as for ``as_arrays``.
        where: how messages call the batch; they begin with it.
        source: prefix of the samples' names.
        start: number of samples before this batch.
        axes: the axis of the samples of arrays that do not have it first; None for one that has none. If no
            array has one, the value is one step, and counts as one sample.
        singles: the value is one sample, whose arrays have no axis for the samples yet.

    Raises:
        DataFormatError, EmptyDataError: as for ``as_arrays``, or there are no samples.
        DataShapeError: an array has no axis for the samples, or they disagree on their number.
        LabelError: the labels are not numbers, or not one per sample.

    Example:
        >>> batch = as_batch({"x": np.zeros((2, 3)), "label": np.array([1, 0])}, "batch 0", "data", 4)
        >>> batch.names, batch.labels
        (('data[4]', 'data[5]'), array([1, 0]))
    """
    arrays, label = as_arrays(value, where)
    return batch_of(
        arrays, label, where, lambda count: indexed_names(source, start, count), axes, singles=singles
    )


def _named(value: Mapping[Any, Any], where: str) -> Arrays:
    for name in value:
        if not isinstance(name, str):
            raise DataFormatError(
                f"{where} has the key {name!r}, expected the name of an input",
                hint="yield a dict from the names of inputs to arrays",
            )
    return {name: _as_array(item, f"array '{name}' of {where}") for name, item in value.items()}


def _placed(values: Sequence[Any], where: str) -> Arrays:
    if not any(getattr(item, "ndim", 0) for item in values):
        raise _no_array(values, where)  # Numbers: the type of an array of them would be a guess.
    arrays = [_as_array(item, f"array {index} of {where}") for index, item in enumerate(values)]
    if len(arrays) == 1:
        return {ANONYMOUS: arrays[0]}
    return {f"{POSITION}{index}": array for index, array in enumerate(arrays)}


def _no_array(item: object, where: str) -> DataFormatError:
    return DataFormatError(
        f"{where} is a {type(item).__name__}, expected {_WANTED}", hint="make an array with numpy.asarray"
    )


def _as_array(item: Any, where: str, *, is_part: bool = True) -> Array:
    # torch's tensors and others have __array__; the dtype of a list would be a guess.
    if not hasattr(item, "__array__") and not (is_part and isinstance(item, numbers.Real)):
        raise _no_array(item, where)
    try:
        array = np.asarray(item.detach() if hasattr(item, "detach") else item)
    except Exception as error:  # the user's type may raise anything; it is reported, not hidden
        raise DataFormatError(
            f"{where} cannot be converted to a numpy array: {type(error).__name__}: {error}",
            hint="for a torch tensor, yield tensor.detach().cpu()",
        ) from error
    if array.dtype.kind not in "biuf":
        raise DataFormatError(
            f"{where} has dtype {array.dtype}, expected numbers", hint="yield an array of numbers"
        )
    # Copied, because the callable may write to the same array again while this batch is still waiting.
    return np.array(array, array.dtype.newbyteorder("="), order="C")
