"""The interface of every source of samples, a source seen differently, and samples that are set aside."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.batches import EVERY_BATCH, Batch, Selection, cut, rebatch
from ptq_cli.core.errors import DataShapeError, RecipeValueError
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import entry_option

ANONYMOUS = ""  # name of a source's single unnamed array: images, ``.npy``
# Prefix of an unnamed array among several; its place follows: ``#0``
POSITION = "#"


class Dataset(ABC):
    """Samples that can be iterated repeatedly, always in the same order, without holding them in memory.

    Attributes:
        source: the path, pattern or callable that the user named.
        count: number of samples, limited by ``samples``; None if only iterating tells.
        specs: the arrays as found, by name; the first axis is None. A source with a single unnamed array
            uses the name ``""``.
        has_labels: whether each batch has labels.
        class_names: name of each class by its label; empty if the source does not know.
        extras_allowed: whether arrays that are not inputs of the model are ignored. Where they are not, an
            extra array is taken for a misspelt name.
        holds_files: whether each item is a file of its own.
        is_resumable: whether the digest says which data this is, so that a checkpoint can be continued.
        default_input: the array that a model with one input takes if none has that input's name, or None.
        renamed: the new name of each array that ``data.rename`` has given one, by its own.
    """

    source: str
    count: int | None
    specs: dict[str, TensorSpec]
    has_labels: bool
    class_names: tuple[str, ...]
    extras_allowed: bool = False
    holds_files: bool = False
    is_resumable: bool = True
    default_input: str | None = None
    renamed: Mapping[str, str] = MappingProxyType({})

    def only(self, names: Collection[str]) -> Self:
        """Return the same data with only these arrays; sources that can, do not read the others."""
        del names
        return self

    def along(self, axes: Mapping[str, int | None]) -> "Dataset":
        """Return the same data with the samples of its arrays on these axes.

        None is for an array that belongs to all samples together. Where each sample is stored by itself, the
        arrays of a batch are joined along the axis.
        """
        return move_axes(self, axes)

    def singles(self, axes: Mapping[str, int | None]) -> "Dataset | None":
        """Return the same data where each item is one sample, whose arrays get an axis for it.

        None where items are not stored apart, or have the axis already.
        """
        del axes
        return None

    def can_make(self, name: str) -> bool:
        """Tell whether ``fitted`` can make an array that ``specs`` does not have."""
        del name
        return False

    def fitted(self, inputs: Mapping[str, TensorSpec]) -> "Dataset":
        """Return the same data as a model takes it, where that decides what is made of it.

        ``inputs`` are the model's, by the name that the data has for each.
        """
        del inputs
        return self

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes for the user on the data."""
        return ()

    def is_single(self, name: str) -> bool:
        """Tell whether an array has a single value for all samples, whatever its rank."""
        return not self.specs[name].shape

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the source, in hexadecimal. Settings such as ``samples`` do not change it."""

    def batches(self, batch_size: int, selection: Selection = EVERY_BATCH) -> Generator[Batch]:
        """Yield the selected batches in order; only the last of all may be smaller.

        Those that are not selected are skipped, without reading them where possible.
        """
        if batch_size < 1:
            raise RecipeValueError(f"batch_size must be at least 1, got {batch_size}", hint="32 is usual")
        return self._stream(batch_size, selection)

    @abstractmethod
    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        """Do the work of ``batches``."""


def require_samples(samples: int | None) -> None:
    """Refuse a limit on the number of samples below 1."""
    if samples is not None and samples < 1:
        raise RecipeValueError(
            f"samples must be at least 1, got {samples}", hint="leave it out to use all samples"
        )


class DatasetView(Dataset):
    """The samples of another data set, seen differently: what it does not say itself, the other one does."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.source, self.count, self.specs = dataset.source, dataset.count, dataset.specs
        self.has_labels, self.class_names = dataset.has_labels, dataset.class_names
        self.is_resumable = dataset.is_resumable
        self.extras_allowed, self.default_input = dataset.extras_allowed, dataset.default_input
        self.holds_files = dataset.holds_files

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes for the user on the source."""
        return self._dataset.remarks

    def can_make(self, name: str) -> bool:
        """Tell whether the source can make an array."""
        return self._dataset.can_make(name)

    def is_single(self, name: str) -> bool:
        """Tell whether an array has a single value for all samples."""
        return self._dataset.is_single(name)

    def digest(self) -> str:
        """The digest of the source; it does not depend on how that is seen."""
        return self._dataset.digest()


class MovedAxes(DatasetView):
    """The same samples on other axes; made by ``move_axes``."""

    def __init__(self, dataset: Dataset, axes: Mapping[str, int]) -> None:
        super().__init__(dataset)
        self._axes = dict(axes)
        self.specs = {name: _moved(spec, axes.get(name, 0)) for name, spec in dataset.specs.items()}

    def only(self, names: Collection[str]) -> "MovedAxes":
        """Return the same data with only these arrays."""
        return MovedAxes(self._dataset.only(names), self._axes)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        with closing(self._dataset.batches(batch_size, selection)) as batches:
            for batch in batches:
                inputs = {
                    name: np.ascontiguousarray(np.moveaxis(array, 0, self._axes.get(name, 0)))
                    for name, array in batch.inputs.items()
                }
                yield Batch(inputs, batch.labels, batch.names, self._axes)


def move_axes(dataset: Dataset, axes: Mapping[str, int | None]) -> Dataset:
    """Return data with its samples on other axes; those on the first one stay."""
    moved: dict[str, int] = {}
    for name, axis in axes.items():
        rank = len(dataset.specs[name].shape)
        if axis is None:
            raise DataShapeError(
                f"array '{name}' of '{dataset.source}' is stored for each sample, but the input has no axis "
                "for samples",
                hint="put it into an .npz file as a whole, yield it from a callable, or fix it: "
                f"{entry_option('model.inputs', name, 'VALUE')}",
            )
        if axis >= rank:
            raise no_axis(name, axis, rank, f"'{dataset.source}'")
        if axis:
            moved[name] = axis
    return MovedAxes(dataset, moved) if moved else dataset


def no_axis(name: str, axis: int, rank: int, where: str) -> DataShapeError:
    """Return the error to raise where an array does not have the axis of its samples."""
    return DataShapeError(
        f"array '{name}' of {where} has {rank} axes, and its samples should be on axis {axis}",
        hint="the samples are on the same axis of the array as of the model's input",
    )


def require_one_count(counts: Mapping[str, int], axes: Mapping[str, int | None], where: str) -> None:
    """Refuse arrays that differ in the number of samples."""
    first, count = next(iter(counts.items()), ("", 1))
    other = next((name for name, found in counts.items() if found != count), None)
    if other is not None:
        raise DataShapeError(
            f"arrays of {where} differ in the number of samples: "
            f"'{first}' has {count}, '{other}' has {counts[other]}",
            hint=unequal_hint(other, axes.get(other, 0)),
        )


def unequal_hint(name: str, axis: int | None = 0) -> str:
    """Hint on an array that does not have as many samples as the others."""
    if axis:
        return (
            f"the samples of '{name}' are on axis {axis}, as in the model: numpy.moveaxis(array, 0, {axis}) "
            "moves them there from the first"
        )
    return (
        f"the first axis of every array is the sample; {entry_option('data.batch_axis', name, 1)} names "
        f"another axis, {entry_option('data.batch_axis', name, 'none')} uses all of '{name}' for each batch, "
        "and --set model.inputs.NAME=VALUE fixes an input"
    )


def _moved(spec: TensorSpec, axis: int) -> TensorSpec:
    sizes = list(spec.shape)
    sizes.insert(axis, sizes.pop(0))
    return TensorSpec(spec.name, spec.dtype, tuple(sizes), axis)


_BLOCK = 100  # Units among which the share is exact, so that data that is sorted by class is divided evenly
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True)
class Division:
    """Which samples are set aside.

    Attributes:
        unit: samples that stay together: as many as a model takes at once, if it fixes that.

    Example:
        >>> Division(0.5).aside(0, 8).tolist()
        [False, True, True, False, True, True, True, False]
    """

    share: float
    unit: int = 1

    def aside(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Return whether each of ``count`` samples from ``first`` on is set aside.

        It depends on the number of the sample alone, and follows no period: data whose classes alternate is
        divided evenly, too.

        Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", for the order
            within a block.
        """
        units = np.arange(first, first + count) // self.unit
        blocks = units // _BLOCK
        ranks = {block: _ranks(block) for block in np.unique(blocks).tolist()}
        found = [ranks[block][unit % _BLOCK] for block, unit in zip(blocks.tolist(), units, strict=True)]
        return np.array(found, np.float64) < self.share * _BLOCK - 1e-9


def _ranks(block: int) -> npt.NDArray[np.intp]:
    """Return the place of each unit of a block in its random order."""
    with np.errstate(over="ignore"):
        mixed = (np.arange(1, _BLOCK + 1, dtype=np.uint64) + np.uint64(block * _BLOCK)) * GOLDEN
        for shift, factor in zip((30, 27), MIX, strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
        mixed ^= mixed >> np.uint64(31)
    return np.argsort(np.argsort(mixed, kind="stable"), kind="stable")


class DividedDataset(DatasetView):
    """The samples of a source that are set aside, or all others; in the order of the source."""

    def __init__(self, dataset: Dataset, division: Division, *, aside: bool = False) -> None:
        """Take the samples that are set aside, or the rest."""
        super().__init__(dataset)
        self._division, self._aside = division, aside
        self.count = self._counted(dataset.count)

    @property
    def other(self) -> "DividedDataset":
        """The samples that are not in this part."""
        return DividedDataset(self._dataset, self._division, aside=not self._aside)

    def only(self, names: Collection[str]) -> "DividedDataset":
        """Return the same samples with only these arrays."""
        return DividedDataset(self._dataset.only(names), self._division, aside=self._aside)

    def along(self, axes: Mapping[str, int | None]) -> "DividedDataset":
        """Return the same samples on these axes of their arrays."""
        return DividedDataset(self._dataset.along(axes), self._division, aside=self._aside)

    def singles(self, axes: Mapping[str, int | None]) -> "DividedDataset | None":
        """Return the same data where each item is one sample, whose arrays get an axis for it."""
        dataset = self._dataset.singles(axes)
        return DividedDataset(dataset, self._division, aside=self._aside) if dataset is not None else None

    def fitted(self, inputs: Mapping[str, TensorSpec]) -> "DividedDataset":
        """Return the same part of the data as a model takes it."""
        return DividedDataset(self._dataset.fitted(inputs), self._division, aside=self._aside)

    def digest(self) -> str:
        """The digest of the source, or one of its own for the part that is set aside."""
        whole = self._dataset.digest()
        return sha256(f"{whole} aside {self._division}".encode()).hexdigest() if self._aside else whole

    def _counted(self, count: int | None) -> int | None:
        if count is None:
            return None
        return int(np.count_nonzero(self._division.aside(0, count) == self._aside))

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        return rebatch(self._chosen(batch_size), batch_size, selection)

    def _chosen(self, batch_size: int) -> Generator[Batch]:
        first = 0
        with closing(self._dataset.batches(batch_size)) as batches:
            for batch in batches:
                chosen = self._division.aside(first, batch.size) == self._aside
                edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
                for start, end in edges.reshape(-1, 2).tolist():
                    yield cut(batch, start, end)
                first += batch.size
