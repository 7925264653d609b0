"""Parquet files a few rows at a time: a row is a sample, a column an input, images or labels, as arrays."""

import contextlib
import copy
import math
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ptq_cli.calibdata.dataset.batches import Batch, Selection
from ptq_cli.calibdata.dataset.data_files import digest_files, escaped_name, unreadable
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import as_labels, find_label
from ptq_cli.calibdata.image_decoding import (
    MAX_IMAGE_BYTES,
    check_image_settings,
    decode_bytes,
    fixed_size,
    image_spec,
    normalize_images,
)
from ptq_cli.calibdata.npy_header import MAX_SAMPLE_BYTES
from ptq_cli.core.errors import (
    DataFormatError,
    DataNameError,
    DataShapeError,
    DataTypeError,
    EmptyDataError,
    LabelError,
    first_line,
)
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.recipe.sections import ImageSettings

_BYTES = "bytes"  # the encoded image in a column of ``{"bytes": …, "path": …}``
NameOfRow = Callable[[int], str]  # how messages call a row of the array


@dataclass(frozen=True, kw_only=True)
class ParquetColumn:
    """A column that can be an input of a model.

    Attributes:
        shape: shape of a sample; None for an axis whose size differs from row to row. Empty for images.
        read: the path that is read from the file.
    """

    name: str
    is_image: bool
    dtype: np.dtype[Any] | None
    shape: tuple[int | None, ...]
    read: str

    def spec(self, settings: ImageSettings) -> TensorSpec:
        """Return the tensor specification of its batches."""
        if self.dtype is None:
            return image_spec(self.name, fixed_size(settings) or (None, None), settings)
        return TensorSpec(self.name, self.dtype, (None, *self.shape))


def column_of(field: pa.Field) -> ParquetColumn | None:
    """Return the column of a field, or None if it is neither numbers nor encoded images: text, dates.

    Example:
        >>> column_of(pa.field("ids", pa.list_(pa.int64()))).shape
        (None,)
        >>> column_of(pa.field("image", pa.struct({"bytes": pa.binary(), "path": pa.string()}))).read
        'image.bytes'
        >>> column_of(pa.field("text", pa.string())) is None
        True
    """
    kind = field.type
    if _is_binary(kind):
        return ParquetColumn(name=field.name, is_image=True, dtype=None, shape=(), read=field.name)
    if pa.types.is_struct(kind):
        index = kind.get_field_index(_BYTES)
        if index < 0 or not _is_binary(kind.field(index).type):
            return None
        return ParquetColumn(
            name=field.name, is_image=True, dtype=None, shape=(), read=f"{field.name}.{_BYTES}"
        )
    shape: list[int | None] = []
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, kind = [*kind.shape], kind.value_type
    while _is_list(kind):
        shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    return ParquetColumn(
        name=field.name,
        is_image=False,
        # Up to pyarrow 25, to_pandas_dtype needs pandas.
        dtype=pa.array([], kind).to_numpy(zero_copy_only=False).dtype,
        shape=tuple(shape),
        read=field.name,
    )


def as_tensor(array: pa.Array, column: ParquetColumn, name_of: NameOfRow) -> Array:
    """Return rows of numbers, or of lists of numbers, as one array.

    Shapes: result: ``(rows, …)``.

    Example:
        >>> column = column_of(pa.field("x", pa.list_(pa.int8())))
        >>> as_tensor(pa.array([[1, 2], [3, 4]], pa.list_(pa.int8())), column, str)
        array([[1, 2],
               [3, 4]], dtype=int8)
    """
    shape, entries = [len(array)], 1
    if isinstance(array.type, pa.FixedShapeTensorType):
        _require_all(array, column, 1, name_of)
        return np.array(array.to_numpy_ndarray())
    while _is_list(array.type):
        _require_all(array, column, entries, name_of)
        size = _one_length(array, column, entries, name_of)
        shape.append(size)
        entries *= size
        array = array.flatten()
    _require_all(array, column, entries, name_of)
    # Copied, because Arrow's memory is read-only and keeps the page of the whole row group alive.
    return np.array(array.to_numpy(zero_copy_only=False)).reshape(shape)


def as_images(
    array: pa.Array, column: ParquetColumn, name_of: NameOfRow, settings: ImageSettings
) -> list[npt.NDArray[np.uint8]]:
    """Return the decoded images of rows."""
    _require_all(array, column, 1, name_of)
    if pa.types.is_struct(array.type):
        array = array.flatten()[array.type.get_field_index(_BYTES)]
        if array.null_count:
            without = name_of(_first_null(array))
            raise DataFormatError(
                f"image '{column.name}' of {without} has no bytes, and ptq does not follow its path",
                hint="embed the images in the Parquet files",
            )
    images = []
    for row, value in enumerate(array):
        where = f"image '{column.name}' of {name_of(row)}"
        content = value.as_py()
        if len(content) > MAX_IMAGE_BYTES:
            raise DataFormatError(
                f"{where} has {len(content)} bytes, the limit is {MAX_IMAGE_BYTES}",
                hint="save smaller images",
            )
        images.append(decode_bytes(content, where, settings))
    return images


def join_tensors(parts: Sequence[Array], column: ParquetColumn, names: Sequence[str]) -> Array:
    """Return the arrays of consecutive rows as one.

    ``names`` are what messages call the first row of each part.
    """
    for part, name in zip(parts, names, strict=True):
        if part.shape[1:] != parts[0].shape[1:]:
            raise _ragged(column, name, list(part.shape[1:]), list(parts[0].shape[1:]))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _one_length(array: pa.Array, column: ParquetColumn, entries: int, name_of: NameOfRow) -> int:
    if pa.types.is_fixed_size_list(array.type):
        size = int(array.type.list_size)
    else:
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        size = int(lengths[0])
        if (others := np.flatnonzero(lengths != size)).size:
            first = int(others[0])
            raise _ragged(column, name_of(first // entries), [int(lengths[first])], [size])
    if not size:
        raise EmptyDataError(
            f"column '{column.name}' of {name_of(0)} is empty", hint="fill it, or remove the row"
        )
    return size


def _ragged(column: ParquetColumn, name: str, found: list[int], wanted: list[int]) -> DataShapeError:
    return DataShapeError(
        f"column '{column.name}' of {name} has length {_shown(found)}, but rows before it in "
        f"the same batch have {_shown(wanted)}",
        hint="pad the lists to one length, or set batch_size = 1",
    )


def _shown(shape: list[int]) -> str:
    return str(shape[0]) if len(shape) == 1 else str(shape)


def _require_all(array: pa.Array, column: ParquetColumn, entries: int, name_of: NameOfRow) -> None:
    if array.null_count:
        raise DataFormatError(
            f"column '{column.name}' of {name_of(_first_null(array) // entries)} has a missing value",
            hint="fill it, or remove the row",
        )


def _first_null(array: pa.Array) -> int:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))


_BUFFER_BYTES = 1 << 20  # without it, or with pre_buffer, whole row groups are read


@dataclass(frozen=True)
class ParquetPart:
    """One file.

    Attributes:
        types: the types of all columns, as Arrow writes them.
        groups: number of rows of each row group.
    """

    path: str
    columns: dict[str, ParquetColumn]
    types: dict[str, str]
    groups: tuple[int, ...]

    @property
    def where(self) -> str:
        """How messages call the file."""
        return f"data '{escaped_name(self.path)}'"

    def name_of(self, row: int) -> str:
        """How messages call a sample.

        Example:
            >>> ParquetPart("data/a.parquet", {}, {}, ()).name_of(7)
            'a.parquet[7]'
        """
        return f"{escaped_name(Path(self.path).name)}[{row}]"

    def require_columns(self, columns: Sequence[ParquetColumn], first: "ParquetPart") -> None:
        """Check that these columns are the same as in the first file."""
        for column in columns:
            if column.name not in self.types:
                raise DataNameError(
                    f"{self.where} has no column '{column.name}', unlike '{escaped_name(first.path)}'",
                    hint="all files must have the same columns",
                )
            if self.columns.get(column.name) != column:
                raise DataTypeError(
                    f"column '{column.name}' of {self.where} is {self.types[column.name]}, "
                    f"but in '{escaped_name(first.path)}' it is {first.types[column.name]}",
                    hint="write all files with one schema",
                )


@dataclass(frozen=True)
class _Rows:
    """Consecutive rows of a file.

    Attributes:
        start: number of the first row, within the file.
    """

    part: ParquetPart
    start: int
    values: pa.RecordBatch

    def name_of(self, row: int) -> str:
        """How messages call one of these rows."""
        return self.part.name_of(self.start + row)

    def cut(self, start: int, count: int) -> "_Rows":
        """Return ``count`` rows from ``start`` on, without copying."""
        return _Rows(self.part, self.start + start, self.values.slice(start, count))


def open_part(path: str) -> ParquetPart:
    """Read a file's footer."""
    where = f"data '{escaped_name(path)}'"
    with parquet_errors(where), pq.ParquetFile(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
        total = metadata.num_rows
        groups = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise DataFormatError(f"{where} has two columns named '{name}'", hint="write it again")
    if sum(groups) != total or any(rows < 0 for rows in groups):
        raise DataFormatError(
            f"{where} is damaged: its row groups have {sum(groups)} rows, the file has {total}",
            hint="download or write it again",
        )
    found = [column_of(field) for field in schema]
    columns = {column.name: column for column in found if column is not None}
    return ParquetPart(path, columns, {field.name: str(field.type) for field in schema}, groups)


def read_group(
    part: ParquetPart, group: int, columns: Sequence[ParquetColumn], batch_size: int
) -> Iterator[_Rows]:
    """Yield the rows of a row group, at most ``batch_size`` at a time."""
    start = sum(part.groups[:group])
    wanted = part.groups[group]
    done = 0
    with contextlib.ExitStack() as stack:
        with parquet_errors(part.where):
            file = pq.ParquetFile(part.path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            stack.enter_context(file)
            _require_sizes(file.metadata.row_group(group), columns, part.where)
            batches = file.iter_batches(
                batch_size, [group], [column.read for column in columns], use_threads=False
            )
        while True:
            with parquet_errors(part.where):
                values = next(batches, None)
            if values is None:
                break
            done += len(values)
            if done > wanted:
                break
            yield _Rows(part, start + done - len(values), values)
    if done != wanted:
        raise DataFormatError(
            f"{part.where} is damaged: found {done} rows in a row group of {wanted}",
            hint="download or write it again",
        )


def _require_sizes(group: pq.RowGroupMetaData, columns: Sequence[ParquetColumn], where: str) -> None:
    # What the footer says about single columns is not read: if that is damaged, pyarrow ends the process.
    declared = group.total_byte_size // max(group.num_rows, 1)
    for column in columns:
        if column.dtype is not None:
            declared = max(declared, column.dtype.itemsize * math.prod(size or 1 for size in column.shape))
    if declared > MAX_SAMPLE_BYTES:
        raise DataFormatError(
            f"{where} declares samples of {declared} bytes, the limit is 2 GiB", hint="save smaller samples"
        )


@contextlib.contextmanager
def parquet_errors(where: str) -> Iterator[None]:
    """Turn what pyarrow raises into errors that name the file."""
    try:
        yield
    except MemoryError as error:  # this includes pyarrow's own
        raise DataFormatError(f"{where} does not fit in memory", hint="lower batch_size") from error
    except (FileNotFoundError, PermissionError) as error:
        raise unreadable(where, error) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise DataFormatError(
            f"{where} is damaged, or a kind of Parquet that ptq does not read: {first_line(error)}",
            hint="download or write it again",
        ) from error


class ParquetDataset(Dataset):
    """The rows of Parquet files, in the order of the files; a few rows are in memory at a time.

    Columns that are not inputs of the model are not read. Row groups without a selected batch are skipped
    without reading them.
    """

    extras_allowed = True

    def __init__(
        self, source: str, files: Sequence[str], settings: ImageSettings, samples: int | None = None
    ) -> None:
        check_image_settings(settings)
        self.source = source
        self.class_names: tuple[str, ...] = ()
        self._settings = settings
        self._files = tuple(files)
        self._parts = tuple(open_part(file) for file in files)
        total = sum(sum(part.groups) for part in self._parts)
        if not total:
            raise EmptyDataError(f"data '{source}' has no rows", hint="write at least one row")
        self.count: int = total if samples is None else min(samples, total)
        self._label = _label_column(self._parts[0])
        self._columns = tuple(column for column in self._parts[0].columns.values() if column != self._label)
        if not self._columns:
            raise EmptyDataError(
                f"data '{source}' has no column of numbers or images",
                hint="a column may hold numbers, lists of numbers of one length, or encoded images",
            )
        self.has_labels = self._label is not None
        self.default_input = _default_input(self._columns)
        self.specs = {column.name: column.spec(settings) for column in self._columns}

    def only(self, names: Collection[str]) -> Self:
        """Return the same rows; other columns are not read."""
        narrowed = copy.copy(self)
        narrowed._columns = tuple(column for column in self._columns if column.name in names)
        narrowed.specs = {name: spec for name, spec in self.specs.items() if name in names}
        return narrowed

    def digest(self) -> str:
        """SHA-256 of the files, as ``digest_files`` computes it."""
        return digest_files(self._files)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        columns = (*self._columns, *([self._label] if self._label is not None else []))
        for part in self._parts:
            part.require_columns(columns, self._parts[0])
        pieces: list[_Rows] = []
        for at, rows in self._rows(columns, batch_size, selection):
            start = 0
            while start < len(rows.values):
                number, place = divmod(at + start, batch_size)
                taken = min(len(rows.values) - start, batch_size - place, self.count - at - start)
                if not taken:
                    break
                if number in selection:
                    pieces.append(rows.cut(start, taken))
                    if place + taken == batch_size or at + start + taken == self.count:
                        yield self._batch(pieces)
                        pieces.clear()
                start += taken

    def _rows(
        self, columns: Sequence[ParquetColumn], batch_size: int, selection: Selection
    ) -> Iterator[tuple[int, _Rows]]:
        """Yield the rows of all row groups that contain parts of a selected batch, each with its position."""
        at = 0
        for part in self._parts:
            for group, rows in enumerate(part.groups):
                end = min(at + rows, self.count)
                numbers = range(at // batch_size, -(-end // batch_size))
                if at < end and any(number in selection for number in numbers):
                    place = at
                    for found in read_group(part, group, columns, batch_size):
                        yield place, found
                        place += len(found.values)
                        if place >= end < at + rows:
                            return  # rows that --samples leaves out are not read
                at += rows

    def _batch(self, pieces: Sequence[_Rows]) -> Batch:
        names = tuple(piece.name_of(row) for piece in pieces for row in range(len(piece.values)))
        inputs: dict[str, Array] = {}
        for column in self._columns:
            if column.is_image:
                images = [
                    image
                    for piece in pieces
                    for image in as_images(
                        piece.values.column(column.name), column, piece.name_of, self._settings
                    )
                ]
                inputs[column.name] = normalize_images(images, names, self._settings, self.source)
            else:
                inputs[column.name] = _tensor(column, pieces)
        labels = None
        if self._label is not None:
            where = f"column '{self._label.name}' of '{self.source}'"
            labels = as_labels(_tensor(self._label, pieces), len(names), where)
        return Batch(inputs, labels, names)


def _tensor(column: ParquetColumn, pieces: Sequence[_Rows]) -> Array:
    parts = [as_tensor(piece.values.column(column.name), column, piece.name_of) for piece in pieces]
    return join_tensors(parts, column, [piece.name_of(0) for piece in pieces])


def _label_column(part: ParquetPart) -> ParquetColumn | None:
    numbers = {name: column for name, column in part.columns.items() if not column.is_image}
    name = find_label(numbers, part.where)
    if name is None:
        return None
    column = numbers[name]
    if column.shape or column.dtype is None or column.dtype.kind not in "iuf":
        raise LabelError(
            f"column '{name}' of {part.where} is {part.types[name]}, expected one number per row",
            hint="labels are class numbers from 0, or targets",
        )
    return column


def _default_input(columns: Sequence[ParquetColumn]) -> str | None:
    """Return the column that a model with one input takes: the only column, or the only one with images."""
    images = [column for column in columns if column.is_image]
    for candidates in (columns, images):
        if len(candidates) == 1:
            return candidates[0].name
    return None
