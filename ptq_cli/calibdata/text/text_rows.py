"""Texts in the order of the data: lines of text files, rows of JSON lines and of Parquet files."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptq_cli.calibdata.dataset.data_files import escaped_name, unreadable
from ptq_cli.calibdata.dataset.labels import find_label
from ptq_cli.core.errors import (
    DataFormatError,
    DataNameError,
    DataTypeError,
    EmptyDataError,
    InputFileError,
    LabelError,
)
from ptq_cli.core.words import did_you_mean

TEXT_SUFFIXES = (".txt", ".jsonl", ".ndjson")
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_PARQUET_MAGIC = b"PAR1"
_LONGEST_LINE = 1 << 24  # bytes; a line of a hostile file may have no end
_ROWS = 256
DEFAULT_COLUMN = "text"


@dataclass(frozen=True)
class TextRow:
    """One text, or a pair of texts, with its label if there is one."""

    texts: tuple[str, ...]
    label: float | int | None
    name: str


@dataclass(frozen=True)
class TextColumns:
    """Which columns hold the texts, and which the label; lines of text files have neither."""

    texts: tuple[str, ...]
    label: str | None


def columns_of(file: str, texts: Sequence[str], label: str | None) -> TextColumns:
    """Return the columns that are read of a file and of all that are like it.

    If none are named, they are ``text``, and ``label`` or ``labels`` where there is one.
    """
    wanted = tuple(texts) or (DEFAULT_COLUMN,)
    kind = kind_of(file)
    if kind == "lines":
        for key, given in (("text.columns", texts), ("text.label_column", label)):
            if given:
                raise DataNameError(
                    f"'{key}' names a column, and '{escaped_name(file)}' is plain text, which has none",
                    hint=f"leave '{key}' out, or pass JSON lines (.jsonl) or Parquet",
                )
        return TextColumns((), None)
    found = _names_in(file, kind)
    for name in (*wanted, *([label] if label else [])):
        if name not in found:
            raise DataNameError(
                f"'{escaped_name(file)}' has no column '{name}'{did_you_mean(name, found)}",
                hint=f"its columns: {', '.join(found)}; name those of the texts with --set text.columns=NAME",
            )
    return TextColumns(wanted, label or find_label([n for n in found if n not in wanted], f"'{file}'"))


def kind_of(file: str) -> str:
    """Return ``"parquet"`` by content, ``"json"`` by the suffix, otherwise ``"lines"``."""
    try:
        with Path(file).open("rb") as stream:
            start = stream.read(len(_PARQUET_MAGIC))
    except OSError as error:
        raise _unreadable(file, error) from error
    if start == _PARQUET_MAGIC:
        return "parquet"
    return "json" if file.lower().endswith(_JSON_SUFFIXES) else "lines"


def _names_in(file: str, kind: str) -> list[str]:
    if kind == "parquet":
        from ptq_cli.calibdata.parquet_files import open_part

        return list(open_part(file).types)
    first = next(_json_rows(file), None)
    if first is None:
        raise EmptyDataError(f"data '{escaped_name(file)}' has no row", hint="write at least one")
    return list(first[1])


def text_rows(files: Sequence[str], columns: TextColumns, *, keep_blank: bool = False) -> Iterator[TextRow]:
    """Yield the texts of files in their order; a line or a batch of rows is in memory at a time.

    With ``keep_blank``, blank lines of a text file are kept, as line breaks before the text that follows.
    Blank lines before the first text and after the last one of a file are left out.
    """
    for file in files:
        kind = kind_of(file)
        name = escaped_name(Path(file).name)
        if kind == "lines":
            yield from _line_rows(file, name, keep_blank=keep_blank)
            continue
        rows = _json_rows(file) if kind == "json" else _parquet_rows(file, columns)
        for number, row in rows:
            yield _row(row, columns, f"{name}[{number}]")


def _line_rows(file: str, name: str, *, keep_blank: bool) -> Iterator[TextRow]:
    breaks = ""
    has_begun = False
    for number, line in _lines(file):
        if line.strip():
            yield TextRow((breaks + line.rstrip("\n"),), None, f"{name}[{number}]")
            breaks, has_begun = "", True
        elif keep_blank and has_begun:
            breaks += "\n"


def _row(row: Mapping[str, Any], columns: TextColumns, name: str) -> TextRow:
    for column in columns.texts:
        if not isinstance(row.get(column), str):
            kind = "missing" if column not in row else f"{type(row[column]).__name__}"
            raise DataTypeError(
                f"column '{column}' of {name} is {kind}, expected text",
                hint="name the column of the texts with --set text.columns=NAME",
            )
    label = row.get(columns.label) if columns.label is not None else None
    if columns.label is not None and (isinstance(label, bool | str) or not isinstance(label, int | float)):
        raise LabelError(
            f"the label '{columns.label}' of {name} is {label!r:.40}, expected a number",
            hint="labels are class numbers from 0, or scores; --set text.label_column=NAME names them",
        )
    return TextRow(tuple(row[column] for column in columns.texts), label, name)


def _lines(file: str) -> Iterator[tuple[int, str]]:
    try:
        with Path(file).open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b"")):
                if len(line) > _LONGEST_LINE:
                    raise DataFormatError(
                        f"line {number + 1} of '{escaped_name(file)}' is longer than 16 MiB",
                        hint="break it into lines",
                    )
                yield number, _decoded(line, file, number)
    except OSError as error:
        raise _unreadable(file, error) from error


def _decoded(line: bytes, file: str, number: int) -> str:
    refusal = DataFormatError(
        f"line {number + 1} of '{escaped_name(file)}' is not text in UTF-8",
        hint="convert the file to UTF-8; ptq reads .npz, .npy, .tar and Parquet by their content",
    )
    if b"\0" in line:
        raise refusal
    try:
        return line.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise refusal from error


def _json_rows(file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataFormatError(
                f"line {number + 1} of '{escaped_name(file)}' is not valid JSON",
                hint='each line is an object: {"text": "…"}',
            ) from error
        if not isinstance(row, dict):
            raise DataFormatError(
                f"line {number + 1} of '{escaped_name(file)}' is JSON, but not an object",
                hint='each line is an object: {"text": "…"}',
            )
        yield number, row


def _parquet_rows(file: str, columns: TextColumns) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow.parquet as pq

    from ptq_cli.calibdata.parquet_files import open_part, parquet_errors

    part, wanted = open_part(file), [*columns.texts, *([columns.label] if columns.label else [])]
    missing = [name for name in wanted if name not in part.types]
    if missing:
        raise DataNameError(
            f"{part.where} has no column '{missing[0]}'", hint="all files must have the same columns"
        )
    start = 0
    with parquet_errors(part.where), pq.ParquetFile(file) as stream:
        for batch in stream.iter_batches(batch_size=_ROWS, columns=wanted):
            rows = batch.to_pylist()
            yield from ((start + place, row) for place, row in enumerate(rows))
            start += len(rows)


def _unreadable(file: str, error: OSError) -> InputFileError:
    return unreadable(f"data '{escaped_name(file)}'", error)


def list_texts(folder: str) -> list[str]:
    """Return the paths of a folder's ``.txt``, ``.jsonl`` and ``.ndjson`` files by name."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names only
    except OSError as error:
        raise _unreadable(folder, error) from error
    kept = [name for name in names if name.lower().endswith(TEXT_SUFFIXES) and not name.startswith(".")]
    return [os.path.join(folder, name) for name in kept]  # noqa: PTH118
