"""Parquet files: a row is a sample, a column is an input of the model, images or labels."""

import copy
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Self

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.labels import as_labels, find_label
from ptq_cli.calibdata.dataset.selection import Selection
from ptq_cli.calibdata.dataset.shard_files import digest_files
from ptq_cli.calibdata.images.checked_settings import check_image_settings
from ptq_cli.calibdata.images.normalizing import normalize_images
from ptq_cli.calibdata.parquet.columns import ParquetColumn, as_images, as_tensor, join_tensors
from ptq_cli.calibdata.parquet.row_reader import ParquetPart, Rows, open_part, read_group
from ptq_cli.core.errors import EmptyDataError, LabelError
from ptq_cli.core.tensors import Array
from ptq_cli.recipe.sections.input_sections import ImageSettings


class ParquetDataset(Dataset):
    """The rows of Parquet files, in the order of the files; a few rows are in memory at a time.

    Columns that are not inputs of the model are not read. Row groups without a selected batch are skipped
    without reading them.

    Raises:
        DataFormatError: a footer is damaged.
        EmptyDataError: there are no rows, or no column of numbers or images.
        LabelError: the labels are not numbers, or not one per sample.
        RecipeValueError: an image setting cannot be used.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> path = tempfile.mkdtemp() + "/a.parquet"
        >>> pq.write_table(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]}), path)
        >>> dataset = ParquetDataset(path, [path], ImageSettings())
        >>> dataset.count, str(dataset.specs["x"]), [batch.inputs["x"].shape for batch in dataset.batches(2)]
        (2, 'x: float64[?, ?]', [(2, 2)])
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
        pieces: list[Rows] = []
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
    ) -> Iterator[tuple[int, Rows]]:
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

    def _batch(self, pieces: Sequence[Rows]) -> Batch:
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


def _tensor(column: ParquetColumn, pieces: Sequence[Rows]) -> Array:
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
