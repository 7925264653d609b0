"""The interface of every source of samples."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping
from types import MappingProxyType
from typing import Self

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.selection import EVERY_BATCH, Selection
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.tensors import TensorSpec

ANONYMOUS = ""
"""Name of the array of a source with a single unnamed array: images, ``.npy``."""


POSITION = "#"
"""Begins the name of an array that has none, among several; its place follows: ``#0``."""


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
        is_resumable: whether the digest says which data this is, so that a checkpoint can be continued.
        default_input: the array that a model with one input takes if none has that input's name, or None.
        renamed: the new name of each array that ``--rename`` has given one, by its own.
    """

    source: str
    count: int | None
    specs: dict[str, TensorSpec]
    has_labels: bool
    class_names: tuple[str, ...]
    extras_allowed: bool = False
    is_resumable: bool = True
    default_input: str | None = None
    renamed: Mapping[str, str] = MappingProxyType({})

    def only(self, names: Collection[str]) -> Self:
        """Return the same data with only these arrays; sources that can, do not read the others.

        Edge case:
            A source that always reads all arrays returns itself.
        """
        del names
        return self

    def along(self, axes: Mapping[str, int | None]) -> "Dataset":
        """Return the same data with the samples of its arrays on these axes.

        Args:
            axes: by the array's name; None for an array that belongs to all samples together.

        Edge case:
            Where each sample is stored by itself, the arrays of a batch are joined along the axis.

        Raises:
            DataShapeError: an array does not have the axis, or arrays differ in the number of samples.
        """
        from ptq_cli.calibdata.dataset.moved_axes import move_axes

        return move_axes(self, axes)

    def singles(self, axes: Mapping[str, int | None]) -> "Dataset | None":
        """Return the same data where each item is one sample, whose arrays get an axis for it.

        Args:
            axes: where each array gets it; None for an array that belongs to all samples together.

        Edge case:
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

        Args:
            inputs: the model's inputs, by the name that the data has for each.

        Raises:
            PtqError: the data cannot be made to fit.
        """
        del inputs
        return self

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user should know of the data."""
        return ()

    def is_single(self, name: str) -> bool:
        """Tell whether an array has a single value for all samples, whatever its rank."""
        return not self.specs[name].shape

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 that says which data this is, in hexadecimal.

        It covers the source, not how it is used: neither ``samples`` nor the image settings.
        """

    def batches(self, batch_size: int, selection: Selection = EVERY_BATCH) -> Generator[Batch]:
        """Yield all samples in order, ``batch_size`` at a time; the last batch may be smaller.

        Args:
            batch_size: samples per batch.
            selection: which of the batches; the others are skipped, without reading them where possible.

        Raises:
            RecipeValueError: the batch size is below 1.
            PtqError: the source is damaged, or changed since it was opened.
        """
        if batch_size < 1:
            raise RecipeValueError(f"batch_size must be at least 1, got {batch_size}", hint="32 is usual")
        return self._stream(batch_size, selection)

    @abstractmethod
    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        """Do the work of ``batches``."""


def require_samples(samples: int | None) -> None:
    """Check a limit on the number of samples.

    Raises:
        RecipeValueError: it is below 1.

    Example:
        >>> require_samples(None)
        >>> require_samples(0)
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.RecipeValueError: PTQ-RECIPE-003: samples must be at least 1, got 0
        hint: leave it out to use all samples
    """
    if samples is not None and samples < 1:
        raise RecipeValueError(
            f"samples must be at least 1, got {samples}", hint="leave it out to use all samples"
        )


def indexed_names(source: str, start: int, rows: int) -> tuple[str, ...]:
    """Name samples of a source that has no names of its own.

    Example:
        >>> indexed_names("calib.npz", 16, 2)
        ('calib.npz[16]', 'calib.npz[17]')
    """
    return tuple(f"{source}[{index}]" for index in range(start, start + rows))
