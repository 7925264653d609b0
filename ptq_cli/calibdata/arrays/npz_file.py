"""An ``.npz`` file: arrays by input name, and perhaps labels.

A member is read as a stream, compressed or not, so that only one batch is in memory. Reading a member to its
end also checks its CRC.
"""

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from ptq_cli.calibdata.arrays.array_rows import ArrayDataset
from ptq_cli.calibdata.arrays.npy_header import ArrayHeader, read_header, require_size
from ptq_cli.calibdata.dataset.labels import find_label
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
    require_size(header, member.file_size, where)
    return stream, header
