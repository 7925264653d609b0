"""Samples that are stored one by one, joined along another axis than the first."""

from collections.abc import Collection, Generator, Mapping
from contextlib import closing

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.core.errors import DataShapeError
from ptq_cli.core.tensors import TensorSpec


class MovedAxes(Dataset):
    """The same samples on other axes; made by ``move_axes``."""

    def __init__(self, dataset: Dataset, axes: Mapping[str, int]) -> None:
        self._dataset = dataset
        self._axes = dict(axes)
        self.source = dataset.source
        self.count = dataset.count
        self.specs = {name: _moved(spec, axes.get(name, 0)) for name, spec in dataset.specs.items()}
        self.has_labels = dataset.has_labels
        self.class_names = dataset.class_names
        self.is_resumable = dataset.is_resumable
        self.extras_allowed = dataset.extras_allowed
        self.default_input = dataset.default_input

    def only(self, names: Collection[str]) -> "MovedAxes":
        """Return the same data with only these arrays."""
        return MovedAxes(self._dataset.only(names), self._axes)

    def digest(self) -> str:
        """The digest of the data; it does not depend on the axes."""
        return self._dataset.digest()

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        with closing(self._dataset.batches(batch_size, selection)) as batches:
            for batch in batches:
                inputs = {
                    name: np.ascontiguousarray(np.moveaxis(array, 0, self._axes.get(name, 0)))
                    for name, array in batch.inputs.items()
                }
                yield Batch(inputs, batch.labels, batch.names, self._axes)


def move_axes(dataset: Dataset, axes: Mapping[str, int | None]) -> Dataset:
    """Return data with its samples on other axes; those on the first one stay.

    Raises:
        DataShapeError: an array has no such axis, or belongs to no sample, which this source cannot have.
    """
    moved: dict[str, int] = {}
    for name, axis in axes.items():
        rank = len(dataset.specs[name].shape)
        if axis is None:
            raise DataShapeError(
                f"array '{name}' of '{dataset.source}' is stored for each sample, but the input has no axis "
                "for samples",
                hint="put it into an .npz file as a whole, yield it from a callable, or fix it with --input",
            )
        if axis >= rank:
            raise no_axis(name, axis, dataset.specs[name], dataset.source)
        if axis:
            moved[name] = axis
    return MovedAxes(dataset, moved) if moved else dataset


def no_axis(name: str, axis: int, spec: TensorSpec, source: str) -> DataShapeError:
    """Return the error to raise where an array does not have the axis of its samples."""
    return DataShapeError(
        f"array '{name}' of '{source}' has {len(spec.shape)} axes, and its samples should be on axis {axis}",
        hint="the samples are on the same axis of the array as of the model's input",
    )


def unequal_hint(name: str, axis: int | None = 0) -> str:
    """Return what to do about an array that does not have as many samples as the others."""
    if axis:
        return (
            f"the samples of '{name}' are on axis {axis}, as in the model: numpy.moveaxis(array, 0, {axis}) "
            "moves them there from the first"
        )
    return (
        f"the first axis of every array is the sample; --batch-axis {name}=1 names another axis, "
        f"--batch-axis {name}=none uses all of '{name}' for each batch, and --input fixes an input"
    )


def _moved(spec: TensorSpec, axis: int) -> TensorSpec:
    sizes = list(spec.shape)
    sizes.insert(axis, sizes.pop(0))
    return TensorSpec(spec.name, spec.dtype, tuple(sizes), axis)
