"""Arrays in files, read a few rows at a time from sequential streams.

Rows are read, not memory-mapped: the touched pages of a mapping count as memory of the process, so the peak
would grow with the file. A stream works for compressed members too.
"""

import contextlib
import copy
import os
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Self

import numpy as np

from ptq_cli.calibdata.arrays.npy_header import ArrayHeader, Readable
from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset, indexed_names
from ptq_cli.calibdata.dataset.labels import as_labels
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.core.errors import DataFormatError, InputFileError
from ptq_cli.core.files import sha256_file
from ptq_cli.core.tensors import Array

_CHUNK_BYTES = 1 << 16
"""Most bytes of one read: a read of a compressed stream allocates as much as was requested."""


class ArrayDataset(Dataset):
    """One or several arrays of a file; the first axis of each is the sample."""

    def __init__(
        self, source: str, headers: Mapping[str, ArrayHeader], label: str | None, samples: int | None
    ) -> None:
        total = next(iter(headers.values())).count
        self.source = source
        self.count: int = total if samples is None else min(samples, total)
        self.specs = {name: header.spec(name) for name, header in headers.items() if name != label}
        self.has_labels = label is not None
        self.class_names = ()
        self._headers = dict(headers)
        self._label = label

    def only(self, names: Collection[str]) -> Self:
        """Return the same rows of these arrays, and the labels; the others are not read."""
        narrowed = copy.copy(self)
        narrowed._headers = {
            name: header for name, header in self._headers.items() if name in names or name == self._label
        }
        narrowed.specs = {name: spec for name, spec in self.specs.items() if name in names}
        return narrowed

    def digest(self) -> str:
        """SHA-256 of the file's bytes."""
        try:
            return sha256_file(Path(self.source))
        except OSError as error:
            raise InputFileError(
                f"data '{self.source}' cannot be read: {error.strerror}",
                hint="check the file and its permissions",
            ) from error

    @abstractmethod
    def _open(self, stack: contextlib.ExitStack) -> dict[str, IO[bytes]]:
        """Open a stream for each array, at its first value; ``stack`` closes them."""

    @abstractmethod
    def _where(self, name: str) -> str:
        """How messages call an array."""

    def _stream(self, batch_size: int, selection: Selection) -> Iterator[Batch]:
        with contextlib.ExitStack() as stack:
            streams, at = self._open(stack), 0
            for number, start in enumerate(range(0, self.count, batch_size)):
                if number not in selection:
                    continue
                rows = min(batch_size, self.count - start)
                arrays = {
                    name: self._rows(stream, name, start - at, rows) for name, stream in streams.items()
                }
                at = start + rows
                labels: Array | None = None
                if self._label is not None:
                    labels = as_labels(arrays.pop(self._label), rows, self._where(self._label))
                yield Batch(arrays, labels, indexed_names(Path(self.source).name, start, rows))

    def _rows(self, stream: IO[bytes], name: str, passed: int, rows: int) -> Array:
        """Skip ``passed`` rows without reading them, and read the next ones."""
        header = self._headers[name]
        stream.seek(passed * header.row_bytes, os.SEEK_CUR)
        return read_rows(stream, header, rows, self._where(name))


def read_rows(stream: Readable, header: ArrayHeader, rows: int, where: str) -> Array:
    """Read the next rows, in native byte order.

    Shapes:
        result: ``(rows, *header.shape[1:])``.

    Raises:
        DataFormatError: the stream ends early, or the rows do not fit in memory.

    Example:
        >>> import io
        >>> header = ArrayHeader(np.dtype(">i2"), (3,), 0)
        >>> read_rows(io.BytesIO(bytes([0, 1, 0, 2])), header, 2, "it").tolist()
        [1, 2]
    """
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
