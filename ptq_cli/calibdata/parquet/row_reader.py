"""Parquet files, read a few rows at a time by pyarrow."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ptq_cli.calibdata.arrays.npy_header import MAX_SAMPLE_BYTES
from ptq_cli.calibdata.dataset.file_names import escaped_name
from ptq_cli.calibdata.parquet.columns import ParquetColumn, column_of
from ptq_cli.core.errors import DataFormatError, DataNameError, DataTypeError, InputFileError
from ptq_cli.core.errors.error_text import first_line

_BUFFER_BYTES = 1 << 20
"""Pages are read as they are needed; without a buffer, or with pre_buffer, a whole row group is read."""


@dataclass(frozen=True)
class ParquetPart:
    """One file.

    Attributes:
        path: where it is.
        columns: the columns that can be an input, by name.
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
        """Check that these columns are the same as in the first file.

        Raises:
            DataNameError: one is missing.
            DataTypeError: one has another type.
        """
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
class Rows:
    """Consecutive rows of a file.

    Attributes:
        part: the file.
        start: number of the first row, within the file.
        values: one entry per column.
    """

    part: ParquetPart
    start: int
    values: pa.RecordBatch

    def name_of(self, row: int) -> str:
        """How messages call one of these rows."""
        return self.part.name_of(self.start + row)

    def cut(self, start: int, count: int) -> "Rows":
        """Return ``count`` rows from ``start`` on, without copying."""
        return Rows(self.part, self.start + start, self.values.slice(start, count))


def open_part(path: str) -> ParquetPart:
    """Read a file's footer.

    Raises:
        DataFormatError: it is not a Parquet file, is damaged, or has two columns of one name.
        InputFileError: it cannot be read.
    """
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
) -> Iterator[Rows]:
    """Yield the rows of a row group, at most ``batch_size`` at a time.

    Raises:
        DataFormatError: the file is damaged, has fewer or more rows than its footer says, or declares rows of
            more than 2 GiB.
        InputFileError: it cannot be read.
    """
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
            yield Rows(part, start + done - len(values), values)
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
    """Turn what pyarrow raises into errors that name the file.

    Raises:
        DataFormatError: the file is damaged, or does not fit in memory.
        InputFileError: it cannot be read.
    """
    try:
        yield
    except MemoryError as error:  # this includes pyarrow's own
        raise DataFormatError(f"{where} does not fit in memory", hint="lower batch_size") from error
    except (FileNotFoundError, PermissionError) as error:
        raise InputFileError(
            f"{where} cannot be read: {error.strerror}", hint="check the file and its permissions"
        ) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise DataFormatError(
            f"{where} is damaged, or a kind of Parquet that ptq does not read: {first_line(error)}",
            hint="download or write it again",
        ) from error
