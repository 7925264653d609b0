"""One item of data as a batch: several samples, one sample without an axis for samples, or one whole step."""

from collections.abc import Callable, Mapping

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS
from ptq_cli.calibdata.dataset.labels import as_labels
from ptq_cli.calibdata.dataset.moved_axes import unequal_hint
from ptq_cli.core.errors import DataShapeError, EmptyDataError
from ptq_cli.core.tensors import Array


def batch_of(
    arrays: dict[str, Array],
    label: Array | None,
    where: str,
    names: Callable[[int], tuple[str, ...]],
    axes: Mapping[str, int | None] | None = None,
    *,
    singles: bool = False,
) -> Batch:
    """Return arrays that belong together as a batch.

    Args:
        arrays: by name.
        label: of all samples, or of the one.
        where: how messages call the item; they begin with it.
        names: returns the names of that many samples.
        axes: the axis of the samples of arrays that do not have it first; None for one that has none. If no
            array has one, the item is one step, and counts as one sample.
        singles: the item is one sample, and its arrays get the axis.

    Raises:
        EmptyDataError: there are no samples.
        DataShapeError: an array has no axis for the samples, or they disagree on their number.
        LabelError: the labels are not numbers, or not one per sample.

    Example:
        >>> one = batch_of({"x": np.zeros(3)}, np.array(1), "it", lambda count: ("a",) * count, singles=True)
        >>> one.inputs["x"].shape, one.labels
        ((1, 3), array([1]))
    """
    known = {name: axis for name, axis in (axes or {}).items() if name in arrays}
    if singles:
        arrays = with_axis(arrays, known)
    found = {name: None if not array.ndim else known.get(name, 0) for name, array in arrays.items()}
    count = _require_one_count(arrays, found, where)
    labels = None
    if label is not None:
        is_one = singles or set(found.values()) == {None}
        labels = as_labels(label[None] if is_one else label, count, f"array 'label' of {where}")
    others = {name: axis for name, axis in found.items() if axis != 0}
    return Batch(arrays, labels, names(count), others)


def with_axis(arrays: Mapping[str, Array], axes: Mapping[str, int | None]) -> dict[str, Array]:
    """Return the arrays of one sample with an axis for it, which is the first if ``axes`` names no other one.

    Edge case:
        An array of too few axes stays as it is, and is refused with its rank.

    Example:
        >>> [array.shape for array in with_axis({"x": np.zeros(3), "h": np.zeros((2, 3))}, {"h": 1}).values()]
        [(1, 3), (2, 1, 3)]
    """
    return {name: _with_axis(array, axes.get(name, 0)) for name, array in arrays.items()}


def _with_axis(array: Array, axis: int | None) -> Array:
    return array if axis is None or axis > array.ndim else np.expand_dims(array, axis)


def _require_one_count(arrays: Mapping[str, Array], axes: Mapping[str, int | None], where: str) -> int:
    counts: dict[str, int] = {}
    for name, axis in axes.items():
        array = arrays[name]
        if axis is None:
            continue
        if axis >= array.ndim:
            raise DataShapeError(
                f"array '{name}' of {where} has {array.ndim} axes, but its samples should be on axis {axis}",
                hint="the samples are on the same axis of the array as of the model's input",
            )
        counts[name] = array.shape[axis]
    if list(arrays) == [ANONYMOUS] and not arrays[ANONYMOUS].ndim:
        raise DataShapeError(
            f"{where} is a single value, expected an axis for the samples", hint="yield whole batches"
        )
    first, count = next(iter(counts.items()), ("", 1))
    for name, other in counts.items():
        if other != count:
            raise DataShapeError(
                f"arrays of {where} differ in the number of samples: "
                f"'{first}' has {count}, '{name}' has {other}",
                hint=unequal_hint(name, axes[name]),
            )
    if any(array.size == 0 for array in arrays.values()):
        raise EmptyDataError(f"{where} has no values", hint="there must be at least one sample in each batch")
    return count
