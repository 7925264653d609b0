"""Match the data's arrays with the model's inputs by name, rank, shape and dtype, before anything runs."""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from ptq_cli.calibdata.dataset.batches import EVERY_BATCH, Batch, Selection
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, POSITION, Dataset, DatasetView
from ptq_cli.calibdata.dataset.labels import LABEL_NAMES, as_labels
from ptq_cli.core.errors import DataNameError, DataShapeError, DataTypeError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape
from ptq_cli.core.words import did_you_mean, entry_option

BRANCH = "use_cache_branch"  # of exported decoders with one branch for a cache and one without
FIXED_BRANCH = f"fix it, because a cache is empty before the first token: --set model.inputs.{BRANCH}=false"


def match_names(dataset: Dataset, wanted: Sequence[str]) -> dict[str, str]:
    """Return which of the data's arrays belongs to each of a model's inputs.

    The only array fits a model with one input, whatever its name. An array that is not an input is ignored
    where the data allows more arrays than the model takes.
    """
    for found, name in dataset.renamed.items():
        if name not in wanted and name not in LABEL_NAMES:
            raise DataNameError(
                f"{entry_option('data.rename', found, name)}: the model has no input '{name}'"
                f"{did_you_mean(name, list(wanted))}",
                hint=f"the model's inputs: {_quoted(wanted)}; labels are named '{LABEL_NAMES[0]}'",
            )
    places = [name for name in dataset.specs if name.startswith(POSITION)]
    if places:
        # One more than the inputs: the labels, which come last.
        if len(places) not in (len(wanted), len(wanted) + 1):
            raise DataNameError(
                f"a batch of '{dataset.source}' has {len(places)} arrays without names, the model has "
                f"{len(wanted)} {'input' if len(wanted) == 1 else 'inputs'}: {_quoted(wanted)}",
                hint="yield the inputs in this order and the labels last, or a dict of arrays by name",
            )
        return dict(zip(wanted, places, strict=False))
    if list(dataset.specs) == [ANONYMOUS]:
        if len(wanted) != 1:
            raise DataNameError(
                f"the only array of '{dataset.source}' has no name, the model has {len(wanted)} inputs: "
                f"{_quoted(wanted)}",
                hint="save an .npz with one array for each input, by its name",
            )
        return {wanted[0]: ANONYMOUS}
    names = {name: name for name in wanted}
    # With a single array and a single input nothing else can be meant.
    if len(wanted) == 1 and wanted[0] not in dataset.specs:
        sole = next(iter(dataset.specs)) if len(dataset.specs) == 1 else wanted[0]
        names = {wanted[0]: sole if dataset.default_input is None else dataset.default_input}
    needed = {name: key for name, key in names.items() if not dataset.can_make(key)}
    # Tables and tar shards usually have more columns or members, such as ids; arrays in an .npz hardly
    # ever do.
    if not (dataset.extras_allowed and all(key in dataset.specs for key in needed.values())):
        require_names(dataset.specs, needed, f"'{dataset.source}'")
    return names


def positional_label(dataset: Dataset, names: Mapping[str, str]) -> str | None:
    """Return the array of labels where arrays have no names: the one after those of ``match_names``."""
    used = set(names.values())
    return next((name for name in dataset.specs if name.startswith(POSITION) and name not in used), None)


def sole_notes(dataset: Dataset, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a note if an array is taken for an input of another name, because there is one of each."""
    for name, found in names.items():
        if found not in (name, ANONYMOUS, dataset.default_input) and not found.startswith(POSITION):
            yield f"the array '{found}' of '{Path(dataset.source).name}' is used for the input '{name}'"


def require_names(found: Collection[str], wanted: Mapping[str, str], where: str) -> None:
    """Refuse arrays that are not those of a model's inputs."""
    keys = list(wanted.values())
    unknown = [name for name in found if name not in keys]
    for key in keys:
        if key not in found:
            raise DataNameError(
                f"no array for input '{key}' in {where}, found {_quoted(list(found)) or 'none'}"
                f"{did_you_mean(key, unknown)}",
                hint=FIXED_BRANCH if key == BRANCH else _renaming(key, unknown),
            )
    if unknown:
        raise DataNameError(
            f"array '{unknown[0]}' of {where} is not an input of the model{did_you_mean(unknown[0], keys)}",
            hint=f"the model's inputs: {_quoted(wanted)}; labels are named 'label', or with "
            f"{entry_option('data.rename', unknown[0], 'label')}",
        )


def _renaming(key: str, unknown: Sequence[str]) -> str:
    if not unknown:
        return "name each array as the model names its input; an input without axes takes one number"
    renaming = entry_option("data.rename", unknown[0], key)
    return f"name each array as the model names its input, or pass {renaming}"


def _quoted(names: Mapping[str, object] | Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def scalar_of(array: Array, spec: TensorSpec, where: str) -> Array:
    """Return the single value of a scalar input in a batch, of which ``array`` may hold one for each sample.

    A number of another type becomes the input's type if that keeps its value: Python has one integer type.
    """
    if array.ndim > 1 or not array.size:
        return array  # Its shape is refused with that of the input.
    value: Array = array.reshape(-1)[:1].reshape(())
    if not np.array_equal(array, np.broadcast_to(value, array.shape), equal_nan=array.dtype.kind == "f"):
        raise DataShapeError(
            f"input '{spec.name}' is a single value, but the values of a batch differ in {where}: "
            f"{', '.join(map(str, np.unique(array)[:3]))}",
            hint="--set data.batch_size=1 gives each sample its own value, and "
            f"{entry_option('model.inputs', spec.name, 'VALUE')} fixes it",
        )
    return _as_type(value, spec.dtype)


def _as_type(value: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return a number in another type, or as it is if it would change."""
    if (
        value.dtype.kind not in "iuf"
        or dtype.kind not in "iuf"
        or (value.dtype.kind, dtype.kind) == ("f", "i")
    ):
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = value.astype(dtype)
    return cast if dtype.kind == "f" or int(cast) == int(value) else value


class BoundDataset(DatasetView):
    """A dataset whose batches are keyed by the model's input names; made by ``bind_inputs``."""

    def __init__(self, dataset: Dataset, inputs: Sequence[TensorSpec], names: Mapping[str, str]) -> None:
        super().__init__(dataset)
        found = {spec.name: dataset.specs[names[spec.name]] for spec in inputs}
        self.specs = {
            spec.name: TensorSpec(spec.name, found[spec.name].dtype, found[spec.name].shape, spec.batch_axis)
            for spec in inputs
        }
        self._label = positional_label(dataset, names)
        self.has_labels = dataset.has_labels or self._label is not None
        self._inputs = tuple(inputs)
        self._axes = {spec.name: spec.samples_axis for spec in inputs if spec.samples_axis != 0}
        self._names = dict(names)
        self.notes = (*sole_notes(dataset, names), *dataset.remarks)

    def batches(self, batch_size: int, selection: Selection = EVERY_BATCH) -> Generator[Batch]:
        """Yield the selected batches, keyed by the model's input names."""
        fixed = fixed_batch_size(self._inputs)
        if fixed is not None:
            self._require_batch_size(batch_size, fixed)
        return super().batches(batch_size, selection)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        return self._bound(self._dataset.batches(batch_size, selection))

    def _bound(self, batches: Generator[Batch]) -> Generator[Batch]:
        with closing(batches) as given:
            for batch in given:
                where = f"sample '{batch.names[0]}' of '{self.source}'"
                require_names([name for name in batch.inputs if name != self._label], self._names, where)
                inputs = {name: batch.inputs[key] for name, key in self._names.items()}
                for wanted in self._inputs:
                    array = inputs[wanted.name]
                    if not wanted.shape:
                        array = inputs[wanted.name] = scalar_of(array, wanted, where)
                    _require_fit(array, wanted, where)
                labels = batch.labels
                if self._label is not None:
                    labels = as_labels(batch.inputs[self._label], batch.size, f"the last array of {where}")
                yield replace(batch, inputs=inputs, labels=labels, axes=self._axes)

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

    Every batch is checked again when it is read, because a callable may yield something different later;
    compared to running the model that costs nothing.
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
    """Return data as a model takes it, such as texts in windows of its length, and its arrays by input."""
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
    """Tell whether no input has an axis for samples, so that each item of the data is run as it is."""
    return bool(inputs) and all(spec.samples_axis is None for spec in inputs)


def fixed_batch_size(inputs: Sequence[TensorSpec]) -> int | None:
    """Return the batch size that the model's inputs fix, or None if any is allowed.

    It is 1 if no input has an axis for samples: a run is then one step.
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
                hint=f"name the axis of the samples with {entry_option('data.batch_axis', name, 1)}, or none "
                f"with {entry_option('data.batch_axis', name, 'none')}; otherwise export the model with a "
                "dynamic batch axis",
            )
    return size


def count_samples(piece: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> int:
    """Return how many samples the arrays of a run hold; 1 if no input has an axis for them.

    Example:
        >>> time_first = TensorSpec("x", np.dtype("f4"), (20, None, 3), 1)
        >>> count_samples({"x": np.zeros((20, 2, 3), "f4")}, [time_first])
        2
    """
    axes = ((spec.name, spec.samples_axis) for spec in inputs)
    return max((piece[name].shape[axis] for name, axis in axes if axis is not None), default=1)


def _require_fit(found: Array | TensorSpec, wanted: TensorSpec, where: str, *, sizes: bool = True) -> None:
    if found.dtype == wanted.dtype and len(found.shape) == len(wanted.shape):
        fits = zip(found.shape, wanted.shape, strict=True)
        if all(size is None or fixed is None or size == fixed for size, fixed in fits):
            return
    shapes = f"found {format_shape(found.shape)}, expected {format_shape(wanted.shape)}, in {where}"
    if len(found.shape) != len(wanted.shape):
        raise DataShapeError(
            f"the rank of input '{wanted.name}' differs: {shapes}", hint=_rank_hint(len(found.shape), wanted)
        )
    if not sizes:
        return
    for axis, (size, fixed) in enumerate(zip(found.shape, wanted.shape, strict=True)):
        if size is not None and fixed is not None and size != fixed:
            raise DataShapeError(
                f"dimension {axis} of input '{wanted.name}' differs: {shapes}",
                hint=_size_hint(found.shape, wanted),
            )
    raise DataTypeError(
        f"the dtype of input '{wanted.name}' differs: "
        f"found {found.dtype}, expected {wanted.dtype}, in {where}",
        hint=_hint_of(wanted.dtype),
    )


def _rank_hint(rank: int, wanted: TensorSpec) -> str:
    axis = wanted.samples_axis
    if axis is None:
        return f"the whole of '{wanted.name}' is run as it is: reshape the array"
    if rank == len(wanted.shape) - 1:
        return f"axis {axis} is the sample; reshape the array: numpy.stack(samples, {axis}) joins several"
    return f"axis {axis} is the sample; reshape the array"


def _size_hint(found: Sequence[int | None], wanted: TensorSpec) -> str:
    """Return the hint about sizes that differ: the order of the axes, if nothing else does."""
    left = list(range(1, len(found)))
    order: dict[int, int] = {}
    for axis, size in enumerate(wanted.shape):
        if axis and size is not None:
            same = next((other for other in left if found[other] == size), None)
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
