"""An ``.npz`` file: arrays by input name, and perhaps labels.

A member is read as a stream, compressed or not, so that only one batch is in memory. Reading a member to its
end also checks its CRC.
"""

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from ptq_cli.calibdata.dataset.dataset import Batch, cut, indexed_names, rebatch
from ptq_cli.calibdata.dataset.labels import ItemsDataset, batch_of, find_label
from ptq_cli.calibdata.dataset.selection import Selection, digest_files, escaped_name
from ptq_cli.calibdata.npy_header import ArrayDataset, ArrayHeader, read_header, require_size
from ptq_cli.core.errors import DataFormatError, EmptyDataError, InputFileError
from ptq_cli.core.tensors import Array

_SUFFIX = ".npy"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods that numpy writes. zipfile does not limit the output of the other ones."""

# What zipfile raises on damaged input; RuntimeError is an encrypted member.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, KeyError, struct.error)


class NpzDataset(ArrayDataset):
    """The arrays of an ``.npz`` file, row by row.

    Raises:
        DataFormatError: the archive or a member is damaged, or a member is not an array of numbers.
        EmptyDataError: there are no arrays, or no samples.

    Example:
        >>> import tempfile, numpy as np
        >>> path = tempfile.mkdtemp() + "/calib.npz"
        >>> np.savez_compressed(path, ids=np.zeros((3, 8), np.int64), label=np.array([0, 1, 0]))
        >>> dataset = NpzDataset(path)
        >>> dataset.count, [str(spec) for spec in dataset.specs.values()], dataset.has_labels
        (3, ['ids: int64[?, 8]'], True)
    """

    def __init__(self, source: str, samples: int | None = None) -> None:
        with contextlib.ExitStack() as stack:
            archive = _open_archive(source, stack)
            headers = {}
            for name, member in _members(archive, source).items():
                _, headers[name] = _open_member(archive, member, source, name, stack)
        label = find_label(headers, f"data '{source}'")
        # An array of labels alone is no data for any model.
        if all(name == label for name in headers):
            raise EmptyDataError(f"data '{source}' has no input array", hint="save an array for each input")
        super().__init__(source, headers, label, samples)

    def _open(self, stack: contextlib.ExitStack) -> dict[str, IO[bytes]]:
        archive = _open_archive(self.source, stack)
        members = _members(archive, self.source)
        streams = {}
        for name, expected in self._headers.items():
            if name not in members:
                raise DataFormatError(f"data '{self.source}' changed since it was opened", hint="run again")
            streams[name], header = _open_member(archive, members[name], self.source, name, stack)
            # The file was replaced while it was being read several times: batches of two files must not
            # mix.
            if header != expected:
                raise DataFormatError(f"data '{self.source}' changed since it was opened", hint="run again")
        return streams

    def _where(self, name: str) -> str:
        return f"array '{name}' of '{self.source}'"

    def _rows(self, stream: IO[bytes], name: str, passed: int, rows: int) -> Array:
        with _zip_errors(self._where(name)):
            return super()._rows(stream, name, passed, rows)

    def _whole(self, stream: IO[bytes], header: ArrayHeader, name: str) -> Array:
        with _zip_errors(self._where(name)):
            return super()._whole(stream, header, name)


@contextlib.contextmanager
def _zip_errors(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputFileError(
            f"{where} cannot be read: {error.strerror or error}", hint="check the file and its permissions"
        ) from error
    except _ZIP_ERRORS as error:
        raise DataFormatError(f"{where} is damaged or truncated: {error}", hint="save it again") from error


def _open_archive(source: str, stack: contextlib.ExitStack) -> zipfile.ZipFile:
    with _zip_errors(f"data '{source}'"):
        return stack.enter_context(zipfile.ZipFile(source))


def _members(archive: zipfile.ZipFile, source: str) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    others = []
    for member in archive.infolist():
        if not member.filename.endswith(_SUFFIX):
            others.append(member.filename)
            continue
        name = member.filename.removesuffix(_SUFFIX)
        # A zip archive may hold a name twice, and readers differ in which of them they take.
        if name in members:
            raise DataFormatError(f"data '{source}' has two arrays named '{name}'", hint="save it again")
        members[name] = member
    if others:
        raise DataFormatError(
            f"data '{source}' is a zip archive with '{others[0]}', expected only .npy members",
            hint="save the arrays with numpy.savez; a PyTorch file is a model, not data",
        )
    return members


def _open_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: str, name: str, stack: contextlib.ExitStack
) -> tuple[IO[bytes], ArrayHeader]:
    where = f"array '{name}' of '{source}'"
    if member.compress_type not in _METHODS:
        raise DataFormatError(
            f"{where} is compressed by zip method {member.compress_type}, expected stored or deflate",
            hint="save it with numpy.savez or numpy.savez_compressed",
        )
    with _zip_errors(where):
        stream = stack.enter_context(archive.open(member))
        header = read_header(stream, where, scalars=True)
    # Before anything is allocated: a header may claim more than the member holds.
    require_size(header, member.file_size, where)
    return stream, header


# Several ``.npz`` files: each holds some samples, one sample, or one whole step of a recurrent model.


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
            # At the sample and not at the file, so that --samples means the same for one file and for
            # many.
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
