"""Data in files: names in messages, folders and patterns of one kind, checks and hashes."""

import hashlib
import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from ptq_cli.core.errors import DataFormatError, InputFileError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")


def escaped_name(name: str) -> str:
    r"""Return a file's name as text that can always be written: bytes that are not UTF-8 are escaped.

    Example:
        >>> escaped_name("cat/\udcff.jpg")
        'cat/\\xff.jpg'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def unreadable(what: str, error: OSError) -> InputFileError:
    """Return the error for a file that is there and cannot be read; messages call it ``what``."""
    return InputFileError(
        f"{what} cannot be read: {error.strerror or error}", hint="check the file and its permissions"
    )


def is_image(name: str) -> bool:
    """Tell from the suffix whether a file is an image."""
    return name.lower().endswith(SUFFIXES)


TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
PARQUET_SUFFIXES = (".parquet",)
_RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
_MOST_FILES = 1_000_000
_WHOLE_BYTES = 1 << 30
_PIECES, _PIECE_BYTES = 16, 1 << 16


def has_range(source: str) -> bool:
    """Tell whether a name is a pattern for several files."""
    return _RANGE.search(source) is not None


def expand_ranges(source: str) -> list[str]:
    """Return the names that a pattern stands for, in the order of their numbers.

    As in a shell, numbers are padded to the width of the range's first number if that begins with a zero.
    With several ranges, the last one changes fastest.
    """
    ranges = [(int(match[1]), int(match[2])) for match in _RANGE.finditer(source)]
    for first, last in ranges:
        if last < first:
            raise InputFileError(
                f"data '{source}' has a range that counts downwards: {first} to {last}",
                hint="write the smaller number first",
            )
    if math.prod(last - first + 1 for first, last in ranges) > _MOST_FILES:
        raise InputFileError(
            f"the pattern '{source}' stands for more than {_MOST_FILES} files",
            hint="pass a folder, or a pattern of fewer files",
        )
    return list(_expand(source))


def _expand(source: str) -> Iterator[str]:
    match = _RANGE.search(source)
    if match is None:
        yield source
        return
    width = len(match[1]) if match[1].startswith("0") else 0
    for number in range(int(match[1]), int(match[2]) + 1):
        yield from (
            f"{source[: match.start()]}{number:0{width}}{rest}" for rest in _expand(source[match.end() :])
        )


def list_shards(folder: str) -> list[str]:
    """Return the paths of a folder's ``.tar``, ``.parquet`` or numpy files by name; none if it has none.

    The numbers in the names of numpy files count as numbers: ``2.npz`` is before ``10.npz``. Hidden files
    and other files are ignored. Links are followed, because download caches consist of them.
    """
    found: dict[str, list[str]] = {"tar": [], "parquet": [], "npz": [], "npy": []}
    image = None
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                kind = _kind(name)
                if kind is not None:
                    found[kind].append(name)
                elif image is None and is_image(name):
                    image = name
    except OSError as error:
        raise InputFileError(
            f"folder '{folder}' cannot be listed: {error.strerror}", hint="check its permissions"
        ) from error
    kinds = [min(names) for names in found.values() if names]
    if len(kinds) + (image is not None) > 1 and kinds:
        one, other = map(escaped_name, (kinds[0], kinds[1] if len(kinds) > 1 else str(image)))
        raise DataFormatError(
            f"folder '{folder}' has data of two kinds: '{one}' and '{other}'",
            hint="put each kind into a separate folder",
        )
    arrays = sorted([*found["npz"], *found["npy"]], key=_by_numbers)
    names = [*sorted(found["tar"]), *sorted(found["parquet"]), *arrays]
    return [os.path.join(folder, name) for name in names]  # noqa: PTH118


def _by_numbers(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    parts = re.split(r"([0-9]+)", name)
    # Odd parts are digits; their length without zeros and then their text order them like numbers.
    keys = tuple(
        (len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (0, part)
        for index, part in enumerate(parts)
    )
    return keys, name


def _kind(name: str) -> str | None:
    lowered = name.lower()
    if lowered.endswith(TAR_SUFFIXES):
        return "tar"
    if lowered.endswith(PARQUET_SUFFIXES):
        return "parquet"
    return next((kind for kind in ("npz", "npy") if lowered.endswith(f".{kind}")), None)


def require_files(files: Sequence[str]) -> None:
    """Check that each is a regular file; reading a pipe would block."""
    for file in files:
        try:
            mode = os.stat(file).st_mode  # noqa: PTH116 - a Path for each of a million files is slow
        except FileNotFoundError as error:
            raise InputFileError(
                f"data '{escaped_name(file)}' does not exist",
                hint="check the path; every file of a pattern must exist",
            ) from error
        except OSError as error:
            raise unreadable(f"data '{escaped_name(file)}'", error) from error
        if not stat.S_ISREG(mode):
            raise InputFileError(
                f"data '{escaped_name(file)}' is not a regular file", hint="pass a file or a folder"
            )


def digest_files(files: Sequence[str]) -> str:
    """SHA-256 of the files' content in their order, independent of their names; in hexadecimal.

    Up to 1 GiB in total, all bytes are read. Larger sets would take as long to read as to calibrate on: of
    each of their files the size and 16 pieces of 64 KiB are read, evenly spread from start to end.
    """
    digest = hashlib.sha256()
    try:
        sizes = [Path(file).stat().st_size for file in files]
        whole = sum(sizes) <= _WHOLE_BYTES
        for file, size in zip(files, sizes, strict=True):
            digest.update(b"%d\n" % size)
            with Path(file).open("rb") as stream:
                if whole:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
                    continue
                for piece in range(_PIECES):
                    stream.seek(max(size - _PIECE_BYTES, 0) * piece // (_PIECES - 1))
                    digest.update(stream.read(_PIECE_BYTES))
    except OSError as error:
        raise unreadable(f"data '{error.filename}'", error) from error
    return digest.hexdigest()
