"""Arrays in files, read a few rows at a time from sequential streams.

Rows are read, not memory-mapped: the touched pages of a mapping count as memory of the process, so the peak
would grow with the file. A stream works for compressed members too.
"""

import contextlib
import copy
import math
import os
from abc import abstractmethod
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import IO, Self

import numpy as np

from ptq_cli.calibdata.arrays.npy_header import ArrayHeader, Readable
from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset, indexed_names
from ptq_cli.calibdata.dataset.labels import as_labels, require_label_shape
from ptq_cli.calibdata.dataset.moved_axes import no_axis, unequal_hint
from ptq_cli.calibdata.dataset.rebatch import part_of
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.core.errors import DataFormatError, DataShapeError, InputFileError
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.tensors import Array

_CHUNK_BYTES = 1 << 16
"""Most bytes of one read: a read of a compressed stream allocates as much as was requested."""


class ArrayDataset(Dataset):
    """One or several arrays of a file; the first axis of each is the sample, unless ``along`` says otherwise.

    An array whose samples are on another axis, or that belongs to all samples, is read as a whole.

    Raises:
        DataShapeError: when it is read: the arrays disagree on the number of samples.
        LabelError: when it is read: the labels are not one per sample.
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
        """Return the same arrays with their samples on these axes.

        Edge case:
            A single value belongs to all samples, and needs no axis.

        Raises:
            DataShapeError: an array does not have the axis, or arrays differ in the number of samples.
            LabelError: the labels are not one per sample.
        """
        moved = copy.copy(self)
        moved._axes = {**self._axes, **axes}
        for name, axis in axes.items():
            shape = self._headers[name].shape
            if axis is not None and not shape:
                moved._axes[name] = None
            elif axis is not None and axis >= len(shape):
                raise no_axis(name, axis, self.specs[name], self.source)
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
            raise InputFileError(
                f"data '{self.source}' cannot be read: {error.strerror}",
                hint="check the file and its permissions",
            ) from error

    def whole(self) -> tuple[dict[str, Array], Array | None]:
        """Read all arrays as they are stored; return those of the inputs by name, and the labels.

        Raises:
            DataFormatError, InputFileError: the file is damaged, or cannot be read.
        """
        with contextlib.ExitStack() as stack:
            streams = self._open(stack)
            arrays = {
                name: self._whole(stream, self._headers[name], name) for name, stream in streams.items()
            }
        label = arrays.pop(self._label) if self._label is not None else None
        return arrays, label

    def _whole(self, stream: IO[bytes], header: ArrayHeader, name: str) -> Array:
        return read_whole(stream, header, self._where(name))

    @abstractmethod
    def _open(self, stack: contextlib.ExitStack) -> dict[str, IO[bytes]]:
        """Open a stream for each array, at its first value; ``stack`` closes them."""

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
        if self.count is None:
            first, count = next(iter(counts.items()))
            other = next(name for name, found in counts.items() if found != count)
            raise DataShapeError(
                f"arrays of '{self.source}' differ in the number of samples: "
                f"'{first}' has {count}, '{other}' has {counts[other]}",
                hint=unequal_hint(other, self._axes.get(other, 0)),
            )
        if self._label is not None:
            header = self._headers[self._label]
            total = next(iter(counts.values()), 1)
            require_label_shape(header.dtype, header.shape, total, self._where(self._label))
        return self.count

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
                    name: np.ascontiguousarray(part_of(array, self._axes[name], start, start + rows))
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


def read_whole(stream: Readable, header: ArrayHeader, where: str) -> Array:
    """Read all values of an array, in native byte order.

    Raises:
        DataFormatError: the stream ends early, or the array does not fit in memory.

    Example:
        >>> import io
        >>> read_whole(io.BytesIO(bytes([3])), ArrayHeader(np.dtype("u1"), (), 0), "it")
        array(3, dtype=uint8)
    """
    return read_rows(stream, header, header.count, where).reshape(header.shape)


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
