"""Match the data's arrays with the model's inputs by name, rank, shape and dtype, before anything runs."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing

import numpy as np

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import as_labels
from ptq_cli.calibdata.dataset.selection import EVERY_BATCH, Selection
from ptq_cli.calibdata.input_names import match_names, positional_label, require_names, sole_notes
from ptq_cli.calibdata.scalar_inputs import scalar_of
from ptq_cli.core.errors import DataShapeError, DataTypeError
from ptq_cli.core.tensors import TensorSpec, format_shape


class BoundDataset(Dataset):
    """A dataset whose batches are keyed by the model's input names; made by ``bind_inputs``.

    Attributes:
        notes: what a user should know of the names.
    """

    def __init__(self, dataset: Dataset, inputs: Sequence[TensorSpec], names: Mapping[str, str]) -> None:
        self.source = dataset.source
        self.count = dataset.count
        found = {spec.name: dataset.specs[names[spec.name]] for spec in inputs}
        self.specs = {
            spec.name: TensorSpec(spec.name, found[spec.name].dtype, found[spec.name].shape, spec.batch_axis)
            for spec in inputs
        }
        self._label = positional_label(dataset, names)
        self.has_labels = dataset.has_labels or self._label is not None
        self.class_names = dataset.class_names
        self.is_resumable = dataset.is_resumable
        self._dataset = dataset
        self._inputs = tuple(inputs)
        self._names = dict(names)
        self.notes = (*sole_notes(dataset, names), *dataset.remarks)

    def digest(self) -> str:
        """The digest of the data; it does not depend on the model."""
        return self._dataset.digest()

    def batches(self, batch_size: int, selection: Selection = EVERY_BATCH) -> Generator[Batch]:
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

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        axes = {spec.name: spec.samples_axis for spec in self._inputs if spec.samples_axis != 0}
        with closing(self._dataset.batches(batch_size, selection)) as batches:
            for batch in batches:
                where = f"sample '{batch.names[0]}' of '{self.source}'"
                require_names([name for name in batch.inputs if name != self._label], self._names, where)
                inputs = {name: batch.inputs[key] for name, key in self._names.items()}
                for wanted in self._inputs:
                    if not wanted.shape:
                        inputs[wanted.name] = scalar_of(inputs[wanted.name], wanted, where)
                    array = inputs[wanted.name]
                    _require_fit(TensorSpec(wanted.name, array.dtype, array.shape), wanted, where)
                labels = batch.labels
                if self._label is not None:
                    labels = as_labels(batch.inputs[self._label], batch.size, f"the last array of {where}")
                yield Batch(inputs, labels, batch.names, axes)

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
        >>> from ptq_cli.recipe.sections.input_sections import ImageSettings
        >>> path = tempfile.mkdtemp() + "/x.npy"
        >>> np.save(path, np.zeros((4, 3), np.float32))
        >>> model = [TensorSpec("input", np.dtype("float32"), (None, 3))]
        >>> bound = bind_inputs(open_dataset(path, ImageSettings()), model)
        >>> [sorted(batch.inputs) for batch in bound.batches(4)]
        [['input']]
    """
    dataset, names = fit_dataset(dataset, inputs)
    label = positional_label(dataset, names)
    dataset = dataset.only([*names.values(), *([label] if label is not None else [])])
    singles = as_singles(dataset, inputs, names)
    dataset = singles or dataset
    for wanted in inputs:
        found = dataset.specs[names[wanted.name]]
        if wanted.shape or len(found.shape) > 1:
            _require_fit(found, wanted, f"'{dataset.source}'", sizes=False)
    dataset = dataset.along(
        {names[spec.name]: axis_in_data(dataset, names[spec.name], spec) for spec in inputs}
    )
    fixed_batch_size(inputs)
    for wanted in inputs:
        found = dataset.specs[names[wanted.name]]
        if wanted.shape:
            _require_fit(found, wanted, f"'{dataset.source}'")
    bound = BoundDataset(dataset, inputs, names)
    if singles is not None:
        bound.notes += ("the items of the data have no axis for samples: each is taken as one sample",)
    return bound


def fit_dataset(dataset: Dataset, inputs: Sequence[TensorSpec]) -> tuple[Dataset, dict[str, str]]:
    """Return data as a model takes it, such as texts in windows of its length, and its arrays by the inputs.

    Raises:
        DataNameError: an input has no array, or an array is not an input.
        PtqError: the data cannot be made to fit.
    """
    names = match_names(dataset, [spec.name for spec in inputs])
    return dataset.fitted({names[spec.name]: spec for spec in inputs}), names


def as_singles(dataset: Dataset, inputs: Sequence[TensorSpec], names: Mapping[str, str]) -> Dataset | None:
    """Return data whose items are single samples with an axis for them, or None if they are not.

    Such items have one axis less than the model's inputs, in every array that has samples.
    """
    ranks = {spec.name: len(spec.shape) - (spec.samples_axis is not None) for spec in inputs if spec.shape}
    if not any(spec.shape and spec.samples_axis is not None for spec in inputs):
        return None
    if any(len(dataset.specs[names[name]].shape) != rank for name, rank in ranks.items()):
        return None
    return dataset.singles({names[spec.name]: spec.samples_axis if spec.shape else None for spec in inputs})


def axis_in_data(dataset: Dataset, name: str, spec: TensorSpec) -> int | None:
    """Return the axis of the samples in the data: of a scalar, each sample may have a value, or all one."""
    if spec.shape:
        return spec.samples_axis
    return None if dataset.is_single(name) else 0


def is_step(inputs: Sequence[TensorSpec]) -> bool:
    """Tell whether no input has an axis for samples, so that each item of the data is run as it is.

    Example:
        >>> is_step([TensorSpec("state", np.dtype("f4"), (2, None), None)])
        True
    """
    return bool(inputs) and all(spec.samples_axis is None for spec in inputs)


def fixed_batch_size(inputs: Sequence[TensorSpec]) -> int | None:
    """Return the batch size that the model's inputs fix, or None if any is allowed.

    Edge case:
        1 if no input has an axis for samples: a run is then one step.

    Raises:
        DataShapeError: two inputs fix different ones.

    Example:
        >>> import numpy as np
        >>> fixed_batch_size([TensorSpec("x", np.dtype("float32"), (1, 3, 224, 224))])
        1
    """
    axes = {spec.name: spec.samples_axis for spec in inputs}
    if is_step(inputs):
        return 1
    sizes = {spec.name: spec.shape[axis] for spec in inputs if (axis := axes[spec.name]) is not None}
    fixed = {name: size for name, size in sizes.items() if size is not None}
    if not fixed:
        return None
    first, size = next(iter(fixed.items()))
    for name, other in fixed.items():
        if other != size:
            raise DataShapeError(
                f"the model's inputs fix different batch sizes: '{first}' {size}, '{name}' {other}",
                hint=f"name the axis of the samples with --batch-axis {name}=1, or none with "
                f"--batch-axis {name}=none; otherwise export the model with a dynamic batch axis",
            )
    return size


def _require_fit(found: TensorSpec, wanted: TensorSpec, where: str, *, sizes: bool = True) -> None:
    shapes = f"found {format_shape(found.shape)}, expected {format_shape(wanted.shape)}, in {where}"
    if len(found.shape) != len(wanted.shape):
        raise DataShapeError(
            f"the rank of input '{wanted.name}' differs: {shapes}",
            hint=_rank_hint(found, wanted),
        )
    if not sizes:
        return
    for axis, (size, fixed) in enumerate(zip(found.shape, wanted.shape, strict=True)):
        if size is not None and fixed is not None and size != fixed:
            raise DataShapeError(
                f"dimension {axis} of input '{wanted.name}' differs: {shapes}",
                hint=_size_hint(found, wanted),
            )
    if found.dtype != wanted.dtype:
        raise DataTypeError(
            f"the dtype of input '{wanted.name}' differs: "
            f"found {found.dtype}, expected {wanted.dtype}, in {where}",
            hint=_hint_of(wanted.dtype),
        )


def _rank_hint(found: TensorSpec, wanted: TensorSpec) -> str:
    axis = wanted.samples_axis
    if axis is None:
        return f"the whole of '{wanted.name}' is run as it is: reshape the array"
    if len(found.shape) == len(wanted.shape) - 1:
        return f"axis {axis} is the sample; reshape the array: numpy.stack(samples, {axis}) joins several"
    return f"axis {axis} is the sample; reshape the array"


def _size_hint(found: TensorSpec, wanted: TensorSpec) -> str:
    """Return the hint about sizes that differ: the order of the axes, if nothing else does."""
    left = list(range(1, len(found.shape)))
    order: dict[int, int] = {}
    for axis, size in enumerate(wanted.shape):
        if axis and size is not None:
            same = next((other for other in left if found.shape[other] == size), None)
            if same is None or wanted.samples_axis != 0:
                return "reshape the array; for images set image.resize, image.mode or image.layout"
            order[axis] = same
            left.remove(same)
    axes = [0, *(order[axis] if axis in order else left.pop(0) for axis in range(1, len(wanted.shape)))]
    return f"transpose the array: array.transpose({', '.join(map(str, axes))}); for images set image.layout"


def _hint_of(dtype: np.dtype[np.generic]) -> str:
    if dtype.kind == "O":
        return "the model takes text: convert the text to numbers in the data, outside the model"
    if dtype.isbuiltin == 1:
        return f"save array.astype('{dtype}')"
    return f"array files cannot hold {dtype}: export the model with inputs in float32"
