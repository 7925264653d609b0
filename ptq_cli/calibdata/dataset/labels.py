"""Labels, the correct answer for each sample; and data under the names of the model's inputs.

A class is an integer, the target of a regression one or several numbers, that of a segmentation a mask of
integers.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import closing
from typing import Self

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset, DatasetView
from ptq_cli.core.errors import DataNameError, LabelError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
from ptq_cli.core.words import did_you_mean, entry_option

LABEL_NAMES = ("label", "labels")  # reserved: never an input of the model


def find_label(names: Iterable[str], where: str) -> str | None:
    """Return the name of the array that holds the labels, or None."""
    found = [name for name in names if name in LABEL_NAMES]
    if len(found) > 1:
        raise LabelError(
            f"{where} has both 'label' and 'labels', expected one of them", hint="remove one of them"
        )
    return found[0] if found else None


def require_label_shape(dtype: np.dtype[np.generic], shape: tuple[int, ...], count: int, where: str) -> None:
    """Refuse an array that cannot be the labels of ``count`` samples: not of numbers, or of others."""
    if dtype.kind not in "iuf":
        raise LabelError(
            f"{where} has dtype {dtype}, expected numbers", hint="labels are class numbers from 0, or targets"
        )
    if not shape:
        raise LabelError(
            f"{where} has shape {format_shape(shape)}, expected one label per sample: [{count}]",
            hint="the first axis is the sample",
        )
    if shape[0] != count:
        raise LabelError(
            f"{where} has {shape[0]} labels for {count} samples", hint="save one label for each sample"
        )


def as_labels(array: Array, count: int, where: str) -> Array:
    """Return the labels of ``count`` samples: whole numbers as int64, others in their own dtype."""
    require_label_shape(array.dtype, array.shape, count, where)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise LabelError(f"{where} holds NaN or Inf", hint="remove samples without a label")
        return array
    labels = array.astype(np.int64)
    if array.dtype.kind == "u" and (labels < 0).any():
        raise LabelError(
            f"{where} has label {array.max()}, which does not fit into int64",
            hint="labels are indices of classes: 0, 1, …",
        )
    return labels


def is_class_index(labels: Array) -> bool:
    """Tell whether labels are one whole number per sample."""
    return labels.ndim == 1 and labels.dtype.kind in "iu"


def require_labels(dataset: Dataset, why: str) -> None:
    """Refuse data without labels; ``why``, such as ``"metric 'top1'"``, begins the message."""
    if not dataset.has_labels:
        raise LabelError(
            f"{why} needs labels, and '{dataset.source}' has none",
            hint="add an integer array 'label', or sort images into one folder for each class",
        )


class RenamedDataset(DatasetView):
    """The same samples with other names; made by ``rename_arrays``."""

    def __init__(self, dataset: Dataset, names: Mapping[str, str]) -> None:
        super().__init__(dataset)
        self._names = dict(names)
        self.renamed = {found: name for found, name in names.items() if found != name}
        self._label = next((found for found, name in names.items() if name in LABEL_NAMES), None)
        self.specs = {
            name: dataset.specs[found] for found, name in self._names.items() if found != self._label
        }
        self.has_labels = dataset.has_labels or self._label is not None
        default = dataset.default_input
        self.default_input = self._names.get(default, default) if default is not None else None

    def only(self, names: Collection[str]) -> Self:
        """Return the same data with only these arrays, and the labels."""
        kept = {found: name for found, name in self._names.items() if name in names or found == self._label}
        return type(self)(self._dataset.only(kept), kept)

    def along(self, axes: Mapping[str, int | None]) -> "RenamedDataset":
        """Return the same data with the samples of its arrays on these axes."""
        own = {found: axes[name] for found, name in self._names.items() if name in axes}
        return RenamedDataset(self._dataset.along(own), self._names)

    def singles(self, axes: Mapping[str, int | None]) -> "RenamedDataset | None":
        """Return the same data where each item is one sample, whose arrays get an axis for it."""
        own = {found: axes[name] for found, name in self._names.items() if name in axes}
        dataset = self._dataset.singles(own)
        return RenamedDataset(dataset, self._names) if dataset is not None else None

    def fitted(self, inputs: Mapping[str, TensorSpec]) -> "RenamedDataset":
        """Return the same data as a model takes it."""
        found = {name: own for own, name in self._names.items()}
        dataset = self._dataset.fitted({found.get(name, name): spec for name, spec in inputs.items()})
        made = {name: name for name in dataset.specs if name in inputs and name not in self._names}
        return RenamedDataset(dataset, {**self._names, **made})

    def is_single(self, name: str) -> bool:
        """Tell whether an array has a single value."""
        return any(self._dataset.is_single(found) for found, own in self._names.items() if own == name)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        with closing(self._dataset.batches(batch_size, selection)) as batches:
            for batch in batches:
                labels = batch.labels
                if self._label is not None:
                    where = f"array '{self._label}' of '{self.source}'"
                    labels = as_labels(batch.inputs[self._label], batch.size, where)
                inputs = {
                    self._names.get(found, found): array
                    for found, array in batch.inputs.items()
                    if found != self._label and (found in self._names or found not in self._dataset.specs)
                }
                axes = {self._names.get(found, found): axis for found, axis in batch.axes.items()}
                yield Batch(inputs, labels, batch.names, axes)


def rename_arrays(
    dataset: Dataset,
    rename: Mapping[str, str],
    left_out: Collection[str] = (),
    required: Collection[str] = (),
) -> Dataset:
    """Return the data with arrays under other names, and without those that are not read.

    ``rename`` has the new name of an array by its own; one named ``label`` holds the labels. ``left_out`` are
    new names of arrays that are not read. A single array without a name has nothing to rename. An array that
    the data does not have is not an error if its new name is there, or is that of the labels, unless it is
    required: the same settings serve calibration and evaluation data.
    """
    if ANONYMOUS in dataset.specs and len(dataset.specs) == 1:
        for name in required:
            raise DataNameError(
                f"{entry_option('data.rename', name, rename[name])}: the only array of '{dataset.source}' "
                "has no name",
                hint="leave --set data.rename out: it is used for the model's input",
            )
        return dataset
    found = list(dataset.specs)
    wanted = {name: rename[name] for name in found if name in rename}
    for name, new in rename.items():
        # Labels are for the evaluation, and calibration data need none.
        is_needless = name not in required and new in [*found, *wanted.values(), *LABEL_NAMES]
        if name not in found and not is_needless:
            raise DataNameError(
                f"{entry_option('data.rename', name, new)}: '{dataset.source}' has no array '{name}'"
                f"{did_you_mean(name, found)}",
                hint=f"its arrays: {', '.join(map(repr, found))}",
            )
        if name in found and new in LABEL_NAMES and dataset.has_labels:
            raise LabelError(
                f"{entry_option('data.rename', name, new)}: '{dataset.source}' has labels already",
                hint="leave it out",
            )
    names = {name: wanted.get(name, name) for name in found if wanted.get(name, name) not in left_out}
    _require_distinct(names, dataset.source)
    return dataset if names == {name: name for name in found} else RenamedDataset(dataset.only(names), names)


def _require_distinct(names: Mapping[str, str], source: str) -> None:
    taken: dict[str, str] = {}
    for found, name in names.items():
        key = LABEL_NAMES[0] if name in LABEL_NAMES else name
        if key in taken:
            raise DataNameError(
                f"arrays '{taken[key]}' and '{found}' of '{source}' would both be '{name}'",
                hint="name one array for each input with --set data.rename.ARRAY=INPUT",
            )
        taken[key] = found
