"""Items of data as batches: several samples, one sample without an axis for it, or one whole step."""

import copy
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset, no_axis, require_one_count
from ptq_cli.calibdata.dataset.labels import as_labels
from ptq_cli.core.errors import DataShapeError, EmptyDataError
from ptq_cli.core.tensors import Array, TensorSpec


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

    Samples are on the axes that ``axes`` names, otherwise on the first; if no array has an axis for them, the
    item is one step, and counts as one sample. With ``singles`` the item is one sample, and its arrays get
    the axis. ``where`` begins messages.
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

    An array of too few axes stays as it is, and is refused with its rank.
    """
    placed = {name: (array, axes.get(name, 0)) for name, array in arrays.items()}
    return {
        name: array if axis is None or axis > array.ndim else np.expand_dims(array, axis)
        for name, (array, axis) in placed.items()
    }


def _require_one_count(arrays: Mapping[str, Array], axes: Mapping[str, int | None], where: str) -> int:
    counts: dict[str, int] = {}
    for name, axis in axes.items():
        array = arrays[name]
        if axis is None:
            continue
        if axis >= array.ndim:
            raise no_axis(name, axis, array.ndim, where)
        counts[name] = array.shape[axis]
    if list(arrays) == [ANONYMOUS] and not arrays[ANONYMOUS].ndim:
        raise DataShapeError(
            f"{where} is a single value, expected an axis for the samples", hint="yield whole batches"
        )
    require_one_count(counts, axes, where)
    if any(array.size == 0 for array in arrays.values()):
        raise EmptyDataError(f"{where} has no values", hint="there must be at least one sample in each batch")
    return next(iter(counts.values()), 1)


class ItemsDataset(Dataset):
    """Items such as files, or the values of a callable, on axes that may be moved.

    Each item holds several samples; with ``singles`` it is one; and if no array has an axis for samples, it
    is one step, which is run as it is and counts as one sample.
    """

    def __init__(self, first: Mapping[str, Array]) -> None:
        """Take the arrays of the first item, by name."""
        self._first = dict(first)
        self._axes: Mapping[str, int | None] = {}
        self._singles = False
        self.specs = self._specs()

    def along(self, axes: Mapping[str, int | None]) -> Self:
        """Return the same items with the samples of their arrays on these axes.

        Items are joined only if an array without an axis of samples is the same in both.
        """
        moved = copy.copy(self)
        moved._axes = {**self._axes, **axes}
        moved.specs = moved._specs()
        return moved

    def singles(self, axes: Mapping[str, int | None]) -> Self:
        """Return the same items, each of which is one sample whose arrays get an axis for it."""
        moved = copy.copy(self)
        moved._singles, moved._axes = True, dict(axes)
        moved._first = with_axis(self._first, axes)
        moved.specs = moved._specs()
        return moved

    def is_single(self, name: str) -> bool:
        """Tell whether an array of the first item has a single value, whatever its rank."""
        return self._first[name].size == 1

    @property
    def _is_whole(self) -> bool:
        """Whether an item is one sample, or one step."""
        return self._singles or all(self._axes.get(name, 0) is None for name in self.specs)

    def _specs(self) -> dict[str, TensorSpec]:
        specs = {}
        for name, array in self._first.items():
            axis = self._axes.get(name, 0) if array.ndim else None
            sizes = tuple(None if index == axis else size for index, size in enumerate(array.shape))
            specs[name] = TensorSpec(name, array.dtype, sizes, axis)
        return specs
