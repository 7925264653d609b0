"""Detect by its content which kind of data the user named, and open it."""

import codecs
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ptq_cli.calibdata.archive_stream import BLOCK_BYTES, is_tar_header
from ptq_cli.calibdata.array_files import NPY_MAGIC, NpyDataset, NpzDataset, NumpyFolder
from ptq_cli.calibdata.callable_dataset import CallableDataset
from ptq_cli.calibdata.dataset.data_files import (
    expand_ranges,
    has_range,
    list_shards,
    require_files,
    unreadable,
)
from ptq_cli.calibdata.dataset.dataset import Dataset, require_samples
from ptq_cli.calibdata.image_folder import ImageDataset
from ptq_cli.calibdata.tar_dataset import GZIP_MAGIC, TarDataset
from ptq_cli.calibdata.text.text_dataset import TextDataset
from ptq_cli.calibdata.text.text_rows import DEFAULT_COLUMN, TEXT_SUFFIXES, list_texts
from ptq_cli.core.errors import DataFormatError, EmptyDataError, InputFileError, UsageError
from ptq_cli.core.read_files import missing_file, require_file
from ptq_cli.recipe.sections import ImageSettings, TextSettings

_KINDS = "an .npz, an .npy, .tar shards, .parquet files, a folder of images, text files, or file.py:callable"
NO_TEXT = TextSettings()
_PARQUET_MAGIC = b"PAR1"
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_OTHER_COMPRESSIONS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_IMAGE_MAGICS = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
# An identifier after the last colon and a module or a .py before it: C:\data.npz is not an entry point.
_ENTRY_POINT = re.compile(r"(.*\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):[^\W\d]\w*", re.DOTALL)


def open_dataset(
    source: str, image: ImageSettings, text: TextSettings = NO_TEXT, *, samples: int | None = None
) -> Dataset:
    """Open data of any kind that ptq reads; the content decides which, not the suffix.

    That is an ``.npz``, an ``.npy``, a tar shard, a Parquet file, a folder of images, shards, Parquet,
    ``.npz`` or text files, a pattern of such files (``train-{000..099}.tar``), a text file,
    ``file.py:callable`` or ``package.module:callable``.
    """
    require_samples(samples)
    if not source:
        raise EmptyDataError("no data was given", hint=f"name {_KINDS}")
    path = Path(source)
    if _is_there(path):
        return _open_path(source, path, image, text, samples)
    if _ENTRY_POINT.fullmatch(source):
        return CallableDataset(source, samples)
    if has_range(source):
        return _open_files(source, expand_ranges(source), image, text, samples)
    raise missing_file(source, "data", f"name {_KINDS}; relative paths start at the current folder")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        # An OSError's own text repeats the path.
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputFileError(f"data '{path}' cannot be read: {reason}", hint="check the path") from error


def _open_path(
    source: str, path: Path, image: ImageSettings, text: TextSettings, samples: int | None
) -> Dataset:
    if path.is_dir():
        files = list_shards(source)
        if not files and text.tokenizer is not None:
            files = list_texts(source)
        if files:
            return _open_files(source, files, image, text, samples)
        return ImageDataset(os.fspath(path), image, samples)
    require_file(path, "data")
    start = _start_of(source)
    if start.startswith(NPY_MAGIC):
        return NpyDataset(source, samples)
    if start.startswith(_ZIP_MAGICS):
        return NpzDataset(source, samples)
    return _open_files(source, [source], image, text, samples)


def _open_files(
    source: str, files: Sequence[str], image: ImageSettings, text: TextSettings, samples: int | None
) -> Dataset:
    """Open files of one kind; the first file determines the kind, and each is checked when it is read."""
    require_files(files)
    start = _start_of(files[0])
    if start.startswith(_PARQUET_MAGIC):
        if importlib.util.find_spec("pyarrow") is None:
            raise UsageError(
                f"data '{source}' is Parquet, and reading it needs pyarrow, which is not installed",
                hint="pip install 'ptq-cli[parquet]'",
            )
        from ptq_cli.calibdata.parquet_files import ParquetDataset

        if text.tokenizer is not None and _has_text(files[0], text):
            return TextDataset(source, files, text, samples)
        return ParquetDataset(source, files, image, samples)
    if start.startswith(GZIP_MAGIC) or is_tar_header(start):
        return TarDataset(source, files, image, samples)
    if start.startswith((*_ZIP_MAGICS, NPY_MAGIC)):
        return NumpyFolder(source, files, samples)
    if _is_text(files[0], start, text):
        if text.tokenizer is None:
            raise DataFormatError(
                f"data '{source}' is text, and a model reads tokens",
                hint="name the model's tokenizer: --set text.tokenizer=tokenizer.json",
            )
        return TextDataset(source, files, text, samples)
    raise _unknown_format(files[0], start[:8])


def _has_text(file: str, text: TextSettings) -> bool:
    """Tell whether a Parquet file holds texts: a column was named, or there is one that is called text."""
    from ptq_cli.calibdata.parquet_files import open_part

    return bool(text.columns) or "string" in open_part(file).types.get(DEFAULT_COLUMN, "")


def _is_text(file: str, start: bytes, text: TextSettings) -> bool:
    """Tell whether a file that begins so is text: by its suffix, or with a tokenizer by its content."""
    if not start or file.lower().endswith(TEXT_SUFFIXES):
        return bool(start)  # its reader says which line is not text
    others = (*_IMAGE_MAGICS, *_OTHER_COMPRESSIONS)
    if text.tokenizer is None or file.endswith(".py") or start.startswith(others) or b"\0" in start:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # a character may be cut at the end
    except UnicodeDecodeError:
        return False
    return True


def _start_of(file: str) -> bytes:
    try:
        with Path(file).open("rb") as stream:
            return stream.read(BLOCK_BYTES)
    except OSError as error:
        raise unreadable(f"data '{file}'", error) from error


def _unknown_format(source: str, start: bytes) -> DataFormatError:
    if not start:
        return DataFormatError(
            f"data '{source}' is an empty file, expected {_KINDS}", hint="save the data again"
        )
    hint = "save arrays with numpy.savez"
    for magic, compression in _OTHER_COMPRESSIONS.items():
        if start.startswith(magic):
            return DataFormatError(
                f"data '{source}' is compressed with {compression}, which ptq does not read",
                hint="decompress it, or compress a tar archive with gzip",
            )
    if source.endswith(".py"):
        hint = f"name the callable too: {source}:batches"
    elif start.startswith(_IMAGE_MAGICS):
        hint = "name the folder that the image is in"
    return DataFormatError(
        f"data '{source}' has an unknown format: it begins with {start!r}, expected {_KINDS}", hint=hint
    )
