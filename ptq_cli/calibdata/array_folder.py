"""Several files of arrays: each holds some samples, one sample, or one whole step of a recurrent model."""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Self

from ptq_cli.calibdata.array_files import ArrayDataset, NpyDataset, NpzDataset, _opened
from ptq_cli.calibdata.dataset.batches import Batch, first_samples, indexed_names, rebatch
from ptq_cli.calibdata.dataset.data_files import digest_files, escaped_name
from ptq_cli.calibdata.dataset.items import ItemsDataset, batch_of
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.core.errors import DataFormatError

NPY_MAGIC = b"\x93NUMPY"


def _opened_file(file: str) -> ArrayDataset:
    """Open an ``.npz`` file, or an ``.npy`` file, whose array has no name."""
    with contextlib.ExitStack() as stack:
        is_npy = _opened(file, stack)[0].read(len(NPY_MAGIC)) == NPY_MAGIC
    return NpyDataset(file) if is_npy else NpzDataset(file)


class NumpyFolder(ItemsDataset):
    """The samples of ``.npz`` or ``.npy`` files, in the order of the files; one file is in memory at a time.

    Samples of several files are joined to batches. If no array has an axis for samples, each file is one
    step, which is run as it is.
    """

    def __init__(self, source: str, files: Sequence[str], samples: int | None = None) -> None:
        first = _opened_file(files[0])
        self.source = source
        self.count: int | None = None
        self.has_labels = first.has_labels
        self.class_names: tuple[str, ...] = ()
        self._files = tuple(files)
        self._samples = samples
        arrays, _ = first.whole()
        super().__init__(arrays)

    holds_files = True

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
        # Limited at the sample and not at the file, so that --samples means the same for one file and many.
        files = first_samples(map(self._read, self._files), self._samples)
        return rebatch(files, batch_size, selection)

    def _read(self, file: str) -> Batch:
        found = _opened_file(file)
        if set(found.specs) != set(self.specs) or found.has_labels != self.has_labels:
            raise DataFormatError(
                f"'{escaped_name(file)}' has {_arrays_of(found)}, but the first file of '{self.source}' has "
                f"{_arrays_of(_opened_file(self._files[0]))}",
                hint="save the same arrays in every file, or move other files to another folder",
            )
        arrays, label = found.whole()
        name = escaped_name(Path(file).name)

        def names(count: int) -> tuple[str, ...]:
            return (name,) if self._is_whole else indexed_names(name, 0, count)

        return batch_of(arrays, label, f"'{escaped_name(file)}'", names, self._axes, singles=self._singles)


def _arrays_of(dataset: ArrayDataset) -> str:
    names = ", ".join(f"'{name}'" for name in dataset.specs)
    return f"{names} and labels" if dataset.has_labels else names
