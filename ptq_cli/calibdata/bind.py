"""Match the data's arrays with the model's inputs by name, rank, shape and dtype, before anything runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset
from ptq_cli.calibdata.dataset.selection import EVERY_BATCH, Selection
from ptq_cli.core.errors import DataNameError, DataShapeError, DataTypeError, did_you_mean
from ptq_cli.core.tensors import TensorSpec, format_shape


class BoundDataset(Dataset):
    """A dataset whose batches are keyed by the model's input names; made by ``bind_inputs``.

    Attributes:
        notes: what a user should know of the names.
    """

    def __init__(self, dataset: Dataset, inputs: Sequence[TensorSpec], names: Mapping[str, str]) -> None:
        self.source = dataset.source
        self.count = dataset.count
        self.specs = {
            spec.name: TensorSpec(
                spec.name, dataset.specs[names[spec.name]].dtype, dataset.specs[names[spec.name]].shape
            )
            for spec in inputs
        }
        self.has_labels = dataset.has_labels
        self.class_names = dataset.class_names
        self._dataset = dataset
        self._inputs = tuple(inputs)
        self._names = dict(names)
        self.notes = tuple(sole_notes(dataset, names))

    def digest(self) -> str:
        """The digest of the data; it does not depend on the model."""
        return self._dataset.digest()

    def batches(self, batch_size: int, selection: Selection = EVERY_BATCH) -> Iterator[Batch]:
        """Yield the selected samples, ``batch_size`` at a time, keyed by the model's input names.

        Raises:
            DataShapeError: the model takes batches of one size only, and ``batch_size`` is not that size, or
                the number of samples is not a multiple of it.
            PtqError: as raised by the dataset that was bound.
        """
        fixed = fixed_batch_size(self._inputs)
        if fixed is not None:
            self._require_batch_size(batch_size, fixed)
        return super().batches(batch_size, selection)

    def _stream(self, batch_size: int, selection: Selection) -> Iterator[Batch]:
        for batch in self._dataset.batches(batch_size, selection):
            where = f"sample '{batch.names[0]}' of '{self.source}'"
            _require_names(batch.inputs, self._names, where)
            inputs = {name: batch.inputs[key] for name, key in self._names.items()}
            for wanted in self._inputs:
                array = inputs[wanted.name]
                _require_fit(TensorSpec(wanted.name, array.dtype, array.shape), wanted, where)
            yield Batch(inputs, batch.labels, batch.names)

    def _require_batch_size(self, batch_size: int, fixed: int) -> None:
        if batch_size != fixed:
            raise DataShapeError(
                f"the model takes batches of {fixed}, but batch_size is {batch_size}",
                hint=f"set batch_size = {fixed}, or export the model with a dynamic batch axis",
            )
        if self.count is not None and self.count % fixed:
            whole = self.count - self.count % fixed
            raise DataShapeError(
                f"the model takes batches of {fixed}, but '{self.source}' has {self.count} samples, "
                "which is not a multiple",
                hint=f"set samples = {whole}" if whole else "add more samples",
            )


def bind_inputs(dataset: Dataset, inputs: Sequence[TensorSpec]) -> BoundDataset:
    """Check that the data fits the model's inputs, and key its batches by their names.

    Args:
        dataset: the data; one array without a name fits a model with one input.
        inputs: the model's inputs; None in a shape is any size.

    Edge case:
        Every batch is checked again when it is read, because a callable may yield something different later;
        compared to running the model that costs nothing.

    Raises:
        DataNameError: an input has no array, or an array is not an input.
        DataShapeError: a rank or a fixed dimension differs.
        DataTypeError: a dtype differs; none is converted, because float64 for float32 hints at a mistake.

    Example:
        >>> import numpy as np, tempfile
        >>> from ptq_cli.calibdata.open_dataset import open_dataset
        >>> from ptq_cli.recipe.schema import ImageSettings
        >>> path = tempfile.mkdtemp() + "/x.npy"
        >>> np.save(path, np.zeros((4, 3), np.float32))
        >>> model = [TensorSpec("input", np.dtype("float32"), (None, 3))]
        >>> bound = bind_inputs(open_dataset(path, ImageSettings()), model)
        >>> [sorted(batch.inputs) for batch in bound.batches(4)]
        [['input']]
    """
    names = match_names(dataset, [spec.name for spec in inputs])
    dataset = dataset.only(names.values())
    fixed_batch_size(inputs)
    for wanted in inputs:
        found = dataset.specs[names[wanted.name]]
        _require_fit(found, wanted, f"'{dataset.source}'")
    return BoundDataset(dataset, inputs, names)


def fixed_batch_size(inputs: Sequence[TensorSpec]) -> int | None:
    """Return the batch size that the model's inputs fix, or None if any is allowed.

    Raises:
        DataShapeError: two inputs fix different ones.

    Example:
        >>> import numpy as np
        >>> fixed_batch_size([TensorSpec("x", np.dtype("float32"), (1, 3, 224, 224))])
        1
    """
    fixed = {spec.name: spec.shape[0] for spec in inputs if spec.shape and spec.shape[0] is not None}
    if not fixed:
        return None
    first, size = next(iter(fixed.items()))
    for name, other in fixed.items():
        if other != size:
            raise DataShapeError(
                f"the model's inputs fix different batch sizes: '{first}' {size}, '{name}' {other}",
                hint="export the model with a dynamic batch axis",
            )
    return size


def match_names(dataset: Dataset, wanted: Sequence[str]) -> dict[str, str]:
    """Return which of the data's arrays belongs to each of a model's inputs.

    Args:
        dataset: the data; its only array fits a model with one input, whatever its name.
        wanted: names of the model's inputs.

    Edge case:
        An array that is not an input is ignored where the data allows more arrays than the model takes.

    Raises:
        DataNameError: an input has no array, or an array is not an input.
    """
    if list(dataset.specs) == [ANONYMOUS]:
        if len(wanted) != 1:
            raise DataNameError(
                f"the one array of '{dataset.source}' has no name, the model has {len(wanted)} inputs: "
                f"{_quoted(wanted)}",
                hint="save an .npz with one array for each input, by its name",
            )
        return {wanted[0]: ANONYMOUS}
    names = {name: name for name in wanted}
    if len(wanted) == 1 and wanted[0] not in dataset.specs:
        sole = next(iter(dataset.specs)) if len(dataset.specs) == 1 else wanted[0]
        names = {wanted[0]: sole if dataset.default_input is None else dataset.default_input}
    if not (dataset.extras_allowed and all(key in dataset.specs for key in names.values())):
        _require_names(dataset.specs, names, f"'{dataset.source}'")
    return names


def sole_notes(dataset: Dataset, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a note if an array is taken for an input of another name, because there is one of each.

    Args:
        dataset: the data.
        names: the data's arrays by the model's inputs, as ``match_names`` returns them.
    """
    for name, found in names.items():
        if found not in (name, ANONYMOUS, dataset.default_input):
            yield f"the array '{found}' of '{Path(dataset.source).name}' is used for the input '{name}'"


def _require_names(found: Mapping[str, object], wanted: Mapping[str, str], where: str) -> None:
    keys = list(wanted.values())
    unknown = [name for name in found if name not in keys]
    for key in keys:
        if key not in found:
            raise DataNameError(
                f"no array for input '{key}' in {where}, found {_quoted(found) or 'none'}"
                f"{did_you_mean(key, unknown)}",
                hint=_renaming(key, unknown),
            )
    if unknown:
        raise DataNameError(
            f"array '{unknown[0]}' of {where} is not an input of the model{did_you_mean(unknown[0], keys)}",
            hint=f"the model's inputs: {_quoted(wanted)}; labels are named 'label', or with "
            f"--rename {unknown[0]}=label",
        )


def _require_fit(found: TensorSpec, wanted: TensorSpec, where: str) -> None:
    shapes = f"found {format_shape(found.shape)}, expected {format_shape(wanted.shape)}, in {where}"
    if len(found.shape) != len(wanted.shape):
        raise DataShapeError(
            f"the rank of input '{wanted.name}' differs: {shapes}",
            hint="the first axis is the sample; reshape the array",
        )
    for axis, (size, fixed) in enumerate(zip(found.shape, wanted.shape, strict=True)):
        if size is not None and fixed is not None and size != fixed:
            raise DataShapeError(
                f"dimension {axis} of input '{wanted.name}' differs: {shapes}",
                hint="reshape the array; for images set image.resize, image.mode or image.layout",
            )
    if found.dtype != wanted.dtype:
        raise DataTypeError(
            f"the dtype of input '{wanted.name}' differs: "
            f"found {found.dtype}, expected {wanted.dtype}, in {where}",
            hint=_hint_of(wanted.dtype),
        )


def _renaming(key: str, unknown: Sequence[str]) -> str:
    if not unknown:
        return "name each array as the model names its input"
    return f"name each array as the model names its input, or pass --rename {unknown[0]}={key}"


def _hint_of(dtype: np.dtype[np.generic]) -> str:
    if dtype.kind == "O":
        return "the model takes text: convert the text to numbers in the data, outside the model"
    if dtype.isbuiltin == 1:
        return f"save array.astype('{dtype}')"
    return f"array files cannot hold {dtype}: export the model with inputs in float32"


def _quoted(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
