"""The header of an ``.npy`` stream, checked as untrusted input: parsed as a literal, never evaluated."""

import contextlib
import copy
import io
import math
import os
import struct
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

import numpy as np
from numpy.lib import format as npy_format

from ptq_cli.calibdata.dataset.dataset import (
    ANONYMOUS,
    Batch,
    Dataset,
    indexed_names,
    no_axis,
    part_of,
    unequal_hint,
)
from ptq_cli.calibdata.dataset.labels import as_labels, require_label_shape
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError, InputFileError
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.tensors import Array, TensorSpec, format_shape

MAX_HEADER_BYTES = 10_000
"""numpy's own limit; a longer header could exhaust the literal parser."""

MAX_SAMPLE_BYTES = 2**31
"""One sample above 2 GiB is a damaged or hostile header, not data for a model."""

_PREFIX_BYTES = npy_format.MAGIC_LEN
# Version 3.0 differs only in allowing Unicode field names, and arrays with fields are refused anyway.
_LENGTH_FORMAT = {(1, 0): "<H", (2, 0): "<I"}
_READERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


class Readable(Protocol):
    """A stream that can only be read forward."""

    def read(self, count: int, /) -> bytes:
        """Return the next ``count`` bytes; fewer at the end."""


@dataclass(frozen=True)
class ArrayHeader:
    """Shape and dtype of a stored array.

    Attributes:
        dtype: as stored; it may have the other byte order.
        shape: samples first.
        start: bytes before the first value.

    Example:
        >>> header = ArrayHeader(np.dtype(">f4"), (5, 3), 128)
        >>> header.count, header.row_bytes, header.end, str(header.spec("x"))
        (5, 12, 188, 'x: float32[?, 3]')
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        """Number of samples; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Bytes of the whole stream."""
        return self.start + self.count * self.row_bytes

    def spec(self, name: str, axis: int | None = 0) -> TensorSpec:
        """The array as it is in batches: native byte order, any number of samples on their axis."""
        sizes = tuple(None if index == axis else size for index, size in enumerate(self.shape))
        return TensorSpec(name, self.dtype.newbyteorder("="), sizes, axis)


def read_header(
    stream: Readable, where: str, *, one_sample: bool = False, scalars: bool = False
) -> ArrayHeader:
    """Read the header; the stream is then at the first value.

    Args:
        stream: at the start of an ``.npy``.
        where: how messages call it, such as ``"array 'x' of 'calib.npz'"``; they begin with it.
        one_sample: the array is a single sample; the result has an axis of size 1 before its own.
        scalars: a single value without axes is allowed.

    Raises:
        DataFormatError: not an ``.npy``, a damaged header, Python objects, a dtype that is not a number, or
            Fortran order.
        DataShapeError: the array has no axis for the samples.
        EmptyDataError: the array has no values.

    Source:
        NEP 1 and ``numpy.lib.format``.

    Example:
        >>> stream = io.BytesIO()
        >>> np.save(stream, np.zeros((2, 3), np.float32))
        >>> read_header(io.BytesIO(stream.getvalue()), "it").shape
        (2, 3)
    """
    shape, fortran_order, dtype, start = _parse(stream, where)
    _require_numbers(dtype, where)
    if one_sample:
        fortran_order = fortran_order and len(shape) > 1
        shape = (1, *shape)
    if not shape and not scalars:
        raise DataShapeError(
            f"{where} is a single value, expected an axis for the samples",
            hint="save an array whose first axis is the sample",
        )
    if any(size < 0 for size in shape):
        raise DataFormatError(
            f"{where} has a damaged header: shape {format_shape(shape)}", hint="save it again with numpy.save"
        )
    if fortran_order and len(shape) > 1:
        raise DataFormatError(
            f"{where} is stored in Fortran order, expected C order",
            hint="save numpy.ascontiguousarray(array)",
        )
    header = ArrayHeader(dtype, shape, start)
    if 0 in shape:
        raise EmptyDataError(
            f"{where} has shape {format_shape(shape)}, which has no values",
            hint="save at least one sample",
        )
    if header.row_bytes > MAX_SAMPLE_BYTES:
        raise DataFormatError(
            f"{where} declares samples of {header.row_bytes} bytes, the limit is 2 GiB",
            hint="save smaller samples, or fewer values in each",
        )
    return header


def require_size(header: ArrayHeader, size: int, where: str) -> None:
    """Check that the stream is as long as its header says.

    Raises:
        DataFormatError: it is shorter or longer.
    """
    if header.end != size:
        kind = "truncated" if size < header.end else "damaged"
        raise DataFormatError(
            f"{where} is {kind}: found {size} bytes, "
            f"{header.dtype}{format_shape(header.shape)} takes {header.end}",
            hint="save it again",
        )


def _parse(stream: Readable, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    prefix = stream.read(_PREFIX_BYTES)
    version = (prefix[6], prefix[7]) if len(prefix) == _PREFIX_BYTES else None
    if version is None or not prefix.startswith(npy_format.MAGIC_PREFIX):
        raise DataFormatError(
            f"{where} is not an npy array: its first bytes are {prefix[:8]!r}",
            hint="save it with numpy.save or numpy.savez",
        )
    if version not in _READERS:
        raise DataFormatError(
            f"{where} has npy version {version[0]}.{version[1]}, expected 1.0 or 2.0",
            hint="save it again with numpy.save",
        )
    width = struct.calcsize(_LENGTH_FORMAT[version])
    field = stream.read(width)
    # The length is checked here because numpy would first read as much as the header claims: up to 4 GiB.
    length = struct.unpack(_LENGTH_FORMAT[version], field)[0] if len(field) == width else 0
    if not 0 < length <= MAX_HEADER_BYTES:
        raise DataFormatError(
            f"{where} has a damaged header: its length is {length} bytes",
            hint="save it again with numpy.save",
        )
    text = stream.read(length)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2, and escapes in malformed text
            shape, fortran, dtype = _READERS[version](io.BytesIO(field + text), MAX_HEADER_BYTES)
    except Exception as error:  # the text may be anything, and parsing it may raise anything
        raise DataFormatError(
            f"{where} has a damaged header: {type(error).__name__}", hint="save it again"
        ) from error
    return tuple(int(size) for size in shape), fortran, dtype, len(prefix) + len(field) + length


def _require_numbers(dtype: np.dtype[Any], where: str) -> None:
    if dtype.hasobject:
        raise DataFormatError(
            f"{where} holds Python objects, which ptq never unpickles",
            hint="save an array of numbers; numpy.stack makes one from a list of arrays of the same shape",
        )
    if dtype.kind not in "biuf":
        raise DataFormatError(f"{where} has dtype {dtype}, expected numbers", hint="save an array of numbers")


# Arrays in files, read a few rows at a time from sequential streams.
#
# Rows are read, not memory-mapped: the touched pages of a mapping count as memory of the process, so the
# peak would grow with the file. A stream works for compressed members too.


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


# An ``.npy`` file: one array without a name.


class NpyDataset(ArrayDataset):
    """The rows of an ``.npy`` file.

    Raises:
        DataFormatError: it is damaged, holds Python objects, or is in Fortran order.
        DataShapeError: it has no axis for the samples.
        EmptyDataError: it has no values.

    Example:
        >>> import tempfile, numpy as np
        >>> path = Path(tempfile.mkdtemp()) / "x.npy"
        >>> np.save(path, np.zeros((5, 2), np.float32))
        >>> [batch.names for batch in NpyDataset(str(path), samples=3).batches(2)]
        [('x.npy[0]', 'x.npy[1]'), ('x.npy[2]',)]
    """

    def __init__(self, source: str, samples: int | None = None) -> None:
        with contextlib.ExitStack() as stack:
            _, header = _open_checked(source, stack)
        super().__init__(source, {ANONYMOUS: header}, None, samples)

    def _open(self, stack: contextlib.ExitStack) -> dict[str, IO[bytes]]:
        stream, header = _open_checked(self.source, stack)
        if header != self._headers[ANONYMOUS]:
            raise DataFormatError(f"data '{self.source}' changed since it was opened", hint="run again")
        return {ANONYMOUS: stream}

    def _where(self, name: str) -> str:
        del name  # there is only one array
        return f"data '{self.source}'"


def _open_checked(source: str, stack: contextlib.ExitStack) -> tuple[IO[bytes], ArrayHeader]:
    path = Path(source)
    try:
        stream = stack.enter_context(path.open("rb"))
        size = path.stat().st_size
    except OSError as error:
        raise InputFileError(
            f"data '{source}' cannot be read: {error.strerror}", hint="check the file and its permissions"
        ) from error
    header = read_header(stream, f"data '{source}'")
    require_size(header, size, f"data '{source}'")
    return stream, header
