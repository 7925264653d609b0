"""Data whose items are batches, single samples or whole steps: what the first item says of all."""

import copy
from collections.abc import Mapping
from typing import Self

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.item import with_axis
from ptq_cli.core.tensors import Array, TensorSpec


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

        Edge case:
            An array without an axis of samples belongs to its item: items are joined only if it is the same
            in both.
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
