"""Turn the columns of a Parquet file into arrays: numbers, lists of numbers, and encoded images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptq_cli.calibdata.images.image_decoding import decode_bytes
from ptq_cli.calibdata.images.image_settings import MAX_IMAGE_BYTES, fixed_size, image_spec
from ptq_cli.core.errors import DataFormatError, DataShapeError, EmptyDataError
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

    Shapes:
        result: ``(rows, …)``.

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
