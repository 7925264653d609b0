"""Arrays in ``.npy`` and ``.npz`` files, or in a folder of them, read a few rows at a time.

Rows are read, not memory-mapped: the touched pages of a mapping count as memory of the process, so the peak
would grow with the file. A stream works for compressed members too; reading one to its end also checks its
CRC.
"""

import contextlib
import copy
import math
import os
import struct
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, Selection, first_samples, indexed_names, part_of, rebatch
from ptq_cli.calibdata.dataset.data_files import digest_files, escaped_name, unreadable
from ptq_cli.calibdata.dataset.dataset import ANONYMOUS, Dataset, no_axis, require_one_count
from ptq_cli.calibdata.dataset.items import ItemsDataset, batch_of
from ptq_cli.calibdata.dataset.labels import as_labels, find_label, require_label_shape
from ptq_cli.calibdata.npy_header import ArrayHeader, Readable, read_header, require_size
from ptq_cli.core.errors import DataFormatError, EmptyDataError
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.tensors import Array

_CHUNK_BYTES = 1 << 16  # of one read: a compressed stream allocates what is requested


class ArrayDataset(Dataset):
    """One or several arrays of a file; the first axis of each is the sample, unless ``along`` says otherwise.

    An array whose samples are on another axis, or that belongs to all samples, is read as a whole. Whether
    arrays and labels are of the same number of samples is known once it is read.
    """

    def __init__(
        self, source: str, headers: Mapping[str, ArrayHeader], label: str | None, samples: int | None
    ) -> None:
        self.source = source
        self.specs = {name: header.spec(name) for name, header in headers.items() if name != label}
        self.has_labels = label is not None
        self.class_names = ()
        self._headers = dict(headers)
        self._label = label
        self._samples = samples
        self._axes: dict[str, int | None] = {
            name: None for name, spec in self.specs.items() if not spec.shape
        }
        if label is not None and headers[label].shape:
            # How many there must be is known with the axes of the samples.
            header = headers[label]
            require_label_shape(header.dtype, header.shape, header.count, f"array '{label}' of '{source}'")
        self.count = self._count()

    def only(self, names: Collection[str]) -> Self:
        """Return the same rows of these arrays, and the labels; the others are not read."""
        narrowed = copy.copy(self)
        narrowed._headers = {
            name: header for name, header in self._headers.items() if name in names or name == self._label
        }
        narrowed.specs = {name: spec for name, spec in self.specs.items() if name in names}
        narrowed.count = narrowed._count()
        return narrowed

    def along(self, axes: Mapping[str, int | None]) -> Self:
        """Return the same arrays with their samples on these axes; a single value belongs to all samples."""
        moved = copy.copy(self)
        moved._axes = {**self._axes, **axes}
        for name, axis in axes.items():
            shape = self._headers[name].shape
            if axis is not None and not shape:
                moved._axes[name] = None
            elif axis is not None and axis >= len(shape):
                raise no_axis(name, axis, len(shape), f"'{self.source}'")
        moved.specs = {name: self._headers[name].spec(name, moved._axes.get(name, 0)) for name in self.specs}
        moved.count = moved._count()
        moved._require_one_count()
        return moved

    def is_single(self, name: str) -> bool:
        """Tell whether an array has a single value, whatever its rank."""
        return math.prod(self._headers[name].shape) == 1

    def digest(self) -> str:
        """SHA-256 of the file's bytes."""
        try:
            return sha256_file(Path(self.source))
        except OSError as error:
            raise unreadable(f"data '{self.source}'", error) from error

    def whole(self) -> tuple[dict[str, Array], Array | None]:
        """Read all arrays as they are stored; return those of the inputs by name, and the labels."""
        with contextlib.ExitStack() as stack:
            streams = self._open(stack)
            arrays = {
                name: self._whole(stream, self._headers[name], name) for name, stream in streams.items()
            }
        label = arrays.pop(self._label) if self._label is not None else None
        return arrays, label

    def _whole(self, stream: IO[bytes], header: ArrayHeader, name: str) -> Array:
        return read_rows(stream, header, header.count, self._where(name)).reshape(header.shape)

    def _open(self, stack: contextlib.ExitStack) -> dict[str, IO[bytes]]:
        """Open a stream for each array, at its first value; ``stack`` closes them."""
        streams = {}
        for name, (stream, size) in self._streams(stack).items():
            header = self._headers[name]
            # The file was replaced since, or is while it is read several times: batches of two must not mix.
            if size != header.end or stream.read(len(header.raw)) != header.raw:
                raise DataFormatError(f"data '{self.source}' changed since it was opened", hint="run again")
            streams[name] = stream
        return streams

    @abstractmethod
    def _streams(self, stack: contextlib.ExitStack) -> dict[str, tuple[IO[bytes], int]]:
        """Open each array's stream, and return it with its size in bytes."""

    @abstractmethod
    def _where(self, name: str) -> str:
        """How messages call an array."""

    def _counts(self) -> dict[str, int]:
        axes = {name: self._axes.get(name, 0) for name in self.specs}
        return {name: self._headers[name].shape[axis] for name, axis in axes.items() if axis is not None}

    def _count(self) -> int | None:
        """Return the number of samples; 1 if no array has an axis for them, None if they differ."""
        counts = set(self._counts().values()) or {1}
        if len(counts) > 1:
            return None
        (total,) = counts
        return total if self._samples is None else min(self._samples, total)

    def _require_one_count(self) -> int:
        counts = self._counts()
        total = next(iter(counts.values()), 1)
        if self.count is None:
            require_one_count(counts, self._axes, f"'{self.source}'")
        if self._label is not None:
            header = self._headers[self._label]
            require_label_shape(header.dtype, header.shape, total, self._where(self._label))
        return total if self.count is None else self.count

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        count = self._require_one_count()
        with contextlib.ExitStack() as stack:
            streams, at = self._open(stack), 0
            whole = {
                name: self._whole(streams.pop(name), self._headers[name], name)
                for name, axis in self._axes.items()
                if axis != 0 and name in streams
            }
            for number, start in enumerate(range(0, count, batch_size)):
                if number not in selection:
                    continue
                rows = min(batch_size, count - start)
                arrays = {
                    name: self._rows(stream, name, start - at, rows) for name, stream in streams.items()
                }
                arrays |= {
                    name: np.asarray(part_of(array, self._axes[name], start, start + rows), order="C")
                    for name, array in whole.items()
                }
                at = start + rows
                labels: Array | None = None
                if self._label is not None:
                    labels = as_labels(arrays.pop(self._label), rows, self._where(self._label))
                names = indexed_names(Path(self.source).name, start, rows)
                yield Batch(arrays, labels, names, {name: self._axes[name] for name in whole})

    def _rows(self, stream: IO[bytes], name: str, passed: int, rows: int) -> Array:
        """Skip ``passed`` rows without reading them, and read the next ones."""
        header = self._headers[name]
        stream.seek(passed * header.row_bytes, os.SEEK_CUR)
        return read_rows(stream, header, rows, self._where(name))


def read_rows(stream: Readable, header: ArrayHeader, rows: int, where: str) -> Array:
    """Read the next rows, in native byte order: ``(rows, *header.shape[1:])``."""
    try:
        array = np.empty((rows, *header.shape[1:]), header.dtype)
    except MemoryError as error:
        raise DataFormatError(
            f"{where}: {rows} samples of {header.row_bytes} bytes do not fit in memory",
            hint="lower batch_size",
        ) from error
    _fill(stream, array.reshape(-1).view(np.uint8).data, where)
    return array.astype(header.dtype.newbyteorder("="), copy=False)


def _fill(stream: Readable, target: memoryview, where: str) -> None:
    done = 0
    while done < len(target):
        part = stream.read(min(_CHUNK_BYTES, len(target) - done))
        if not part:
            raise DataFormatError(
                f"{where} is truncated: found {done} bytes of a batch, expected {len(target)}",
                hint="save it again",
            )
        target[done : done + len(part)] = part
        done += len(part)


class NpyDataset(ArrayDataset):
    """The rows of an ``.npy`` file."""

    def __init__(self, source: str, samples: int | None = None) -> None:
        with contextlib.ExitStack() as stack:
            stream, size = _opened(source, stack)
            header = read_header(stream, f"data '{source}'")
        require_size(header, size, f"data '{source}'")
        super().__init__(source, {ANONYMOUS: header}, None, samples)

    def _streams(self, stack: contextlib.ExitStack) -> dict[str, tuple[IO[bytes], int]]:
        return {ANONYMOUS: _opened(self.source, stack)}

    def _where(self, name: str) -> str:
        del name  # there is only one array
        return f"data '{self.source}'"


def _opened(source: str, stack: contextlib.ExitStack) -> tuple[IO[bytes], int]:
    try:
        stream = stack.enter_context(Path(source).open("rb"))  # noqa: SIM115 - the stack closes it
        return stream, Path(source).stat().st_size
    except OSError as error:
        raise unreadable(f"data '{source}'", error) from error


_SUFFIX = ".npy"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy's; zipfile does not limit the others' output
_SKIPPED_AT_ONCE = 1 << 20  # bytes: enough that calls cost nothing, few enough to stay in the cache
# What zipfile raises on damaged input; RuntimeError is an encrypted member.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, KeyError, struct.error)


class NpzDataset(ArrayDataset):
    """The arrays of an ``.npz`` file, row by row."""

    def __init__(self, source: str, samples: int | None = None) -> None:
        headers = {}
        with contextlib.ExitStack() as stack:
            for name, (stream, size) in _open_members(source, stack).items():
                where = f"array '{name}' of '{source}'"
                with _zip_errors(where):
                    headers[name] = read_header(stream, where, scalars=True)
                # Before anything is allocated: a header may claim more than the member holds.
                require_size(headers[name], size, where)
        label = find_label(headers, f"data '{source}'")
        # An array of labels alone is not data for any model.
        if all(name == label for name in headers):
            raise EmptyDataError(f"data '{source}' has no input array", hint="save an array for each input")
        super().__init__(source, headers, label, samples)

    def _open(self, stack: contextlib.ExitStack) -> dict[str, IO[bytes]]:
        with _zip_errors(f"data '{self.source}'"):
            return super()._open(stack)

    def _streams(self, stack: contextlib.ExitStack) -> dict[str, tuple[IO[bytes], int]]:
        return _open_members(self.source, stack, self._headers)

    def _where(self, name: str) -> str:
        return f"array '{name}' of '{self.source}'"

    def _rows(self, stream: IO[bytes], name: str, passed: int, rows: int) -> Array:
        """Read and discard ``passed`` rows, and read the next ones."""
        # From Python 3.12 on, a seek within a stored member moves the file that all members share, so that
        # the others read wrong bytes, and the check of its sum is switched off.
        with _zip_errors(self._where(name)):
            left = passed * self._headers[name].row_bytes
            while left and (skipped := len(stream.read(min(left, _SKIPPED_AT_ONCE)))):
                left -= skipped
            return super()._rows(stream, name, 0, rows)

    def _whole(self, stream: IO[bytes], header: ArrayHeader, name: str) -> Array:
        with _zip_errors(self._where(name)):
            return super()._whole(stream, header, name)


@contextlib.contextmanager
def _zip_errors(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(where, error) from error
    except _ZIP_ERRORS as error:
        raise DataFormatError(f"{where} is damaged or truncated: {error}", hint="save it again") from error


def _open_members(
    source: str, stack: contextlib.ExitStack, names: Collection[str] | None = None
) -> dict[str, tuple[IO[bytes], int]]:
    """Open the arrays of an archive, or those of these names, and return each with its size in bytes."""
    with _zip_errors(f"data '{source}'"):
        archive = stack.enter_context(zipfile.ZipFile(source))
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if not member.filename.endswith(_SUFFIX):
            raise DataFormatError(
                f"data '{source}' is a zip archive with '{member.filename}', expected only .npy members",
                hint="save the arrays with numpy.savez; a PyTorch file is a model, not data",
            )
        name = member.filename.removesuffix(_SUFFIX)
        # A zip archive may hold a name twice, and readers differ in which of them they take.
        if name in members:
            raise DataFormatError(f"data '{source}' has two arrays named '{name}'", hint="save it again")
        members[name] = member
    if names is not None and not members.keys() >= set(names):
        raise DataFormatError(f"data '{source}' changed since it was opened", hint="run again")
    return {
        name: (_open_member(archive, member, f"array '{name}' of '{source}'", stack), member.file_size)
        for name, member in members.items()
        if names is None or name in names
    }


def _open_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str, stack: contextlib.ExitStack
) -> IO[bytes]:
    if member.compress_type not in _METHODS:
        raise DataFormatError(
            f"{where} is compressed by zip method {member.compress_type}, expected stored or deflate",
            hint="save it with numpy.savez or numpy.savez_compressed",
        )
    with _zip_errors(where):
        return stack.enter_context(archive.open(member))


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
