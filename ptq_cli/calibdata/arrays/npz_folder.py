"""Several ``.npz`` files: each holds some samples, one sample, or one whole step of a recurrent model."""

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Self

from ptq_cli.calibdata.arrays.npz_file import NpzDataset
from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import indexed_names
from ptq_cli.calibdata.dataset.file_names import escaped_name
from ptq_cli.calibdata.dataset.item import batch_of
from ptq_cli.calibdata.dataset.items_dataset import ItemsDataset
from ptq_cli.calibdata.dataset.rebatch import cut, rebatch
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.calibdata.dataset.shard_files import digest_files
from ptq_cli.core.errors import DataFormatError


class NpzFolder(ItemsDataset):
    """The samples of ``.npz`` files, in the order of the files; one file is in memory at a time.

    Samples of several files are joined to batches. If no array has an axis for samples, each file is one
    step, which is run as it is.

    Raises:
        DataFormatError: the first file is damaged, or a member of it is not an array of numbers.
        EmptyDataError: the first file has no arrays, or no samples.

    Example:
        >>> import tempfile, numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> files = [f"{folder}/{number}.npz" for number in range(2)]
        >>> for file in files:
        ...     np.savez(file, x=np.zeros((3, 8), np.float32))
        >>> dataset = NpzFolder(folder, files)
        >>> [batch.size for batch in dataset.batches(4)]
        [4, 2]
        >>> [batch.names for batch in dataset.along({"x": None}).batches(1)]
        [('0.npz',), ('1.npz',)]
    """

    def __init__(self, source: str, files: Sequence[str], samples: int | None = None) -> None:
        first = NpzDataset(files[0])
        self.source = source
        self.count: int | None = None
        self.has_labels = first.has_labels
        self.class_names: tuple[str, ...] = ()
        self._files = tuple(files)
        self._samples = samples
        arrays, _ = first.whole()
        super().__init__(arrays)

    def along(self, axes: Mapping[str, int | None]) -> Self:
        """Return the same files with the samples of their arrays on these axes."""
        return super().along(axes)._counted()

    def singles(self, axes: Mapping[str, int | None]) -> Self:
        """Return the same files, each of which is one sample whose arrays get an axis for it."""
        return super().singles(axes)._counted()

    def _counted(self) -> Self:
        if self._is_whole:
            self.count = min(len(self._files), self._samples or len(self._files))
        return self

    def digest(self) -> str:
        """SHA-256 of the files, as ``digest_files`` computes it."""
        return digest_files(self._files)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        return rebatch(self._limited(), batch_size, selection)

    def _limited(self) -> Generator[Batch]:
        left = self._samples
        for file in self._files:
            batch = self._read(file)
            if left is not None and batch.size >= left:
                yield cut(batch, 0, left)
                return
            yield batch
            left = None if left is None else left - batch.size

    def _read(self, file: str) -> Batch:
        found = NpzDataset(file)
        if set(found.specs) != set(self.specs) or found.has_labels != self.has_labels:
            raise DataFormatError(
                f"'{escaped_name(file)}' has {_arrays_of(found)}, but the first file of '{self.source}' has "
                f"{_arrays_of(NpzDataset(self._files[0]))}",
                hint="save the same arrays in every file, or move other files to another folder",
            )
        arrays, label = found.whole()
        name = escaped_name(Path(file).name)

        def names(count: int) -> tuple[str, ...]:
            return (name,) if self._is_whole else indexed_names(name, 0, count)

        return batch_of(arrays, label, f"'{escaped_name(file)}'", names, self._axes, singles=self._singles)


def _arrays_of(dataset: NpzDataset) -> str:
    names = ", ".join(f"'{name}'" for name in dataset.specs)
    return f"{names} and labels" if dataset.has_labels else names
