"""Files that a user names: they exist and can be read, or the error says why not; and their hashes."""

import codecs
import hashlib
import mmap
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from ptq_cli.core.errors import InputFileError, RecipeSyntaxError

# Where a URL begins in a path, which has lost one of its slashes; C: is a drive.
URL = re.compile(r"(?:^|[/\\])([A-Za-z][A-Za-z0-9+.-]+):[/\\]+(?=.)")
HASHED_BLOCK = 1 << 23  # Number of bytes that are read and hashed at a time.


def url_of(path: Path | str) -> str | None:
    """The URL that a user named as a path, or None if it is not one.

    Example:
        >>> url_of(Path("https://host/m.onnx")), url_of("/home/me/s3:/bucket/x"), url_of("C:/m.onnx")
        ('https://host/m.onnx', 's3://bucket/x', None)
    """
    match = URL.search(str(path))
    return f"{match[1]}://{str(path)[match.end() :]}" if match is not None else None


def missing_file(path: Path | str, what: str, hint: str) -> InputFileError:
    """The error to raise where a user named a file that does not exist, or a URL."""
    url = url_of(path)
    if url is None:
        return InputFileError(f"{what} '{path}' does not exist", hint=hint)
    return InputFileError(
        f"{what} '{url}' is a URL, expected a path", hint="download it, and name the file or folder"
    )


def require_file(path: Path, what: str) -> Path:
    """Return ``path`` if it is a regular file that can be read; a pipe can be read only once.

    ``what``, such as ``"model"``, begins the message.
    """
    _require_readable(path, what)
    if not path.is_file():
        raise InputFileError(
            f"{what} '{path}' is not a regular file",
            hint="name a regular file, and not a pipe, a socket or a device",
        )
    return path


def _require_readable(path: Path, what: str) -> None:
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:  # a folder on the way that may not be entered, or a name that is too long
        reason = (error.strerror or str(error)).lower()
        raise InputFileError(f"{what} '{path}' cannot be read: {reason}", hint="check the path") from error
    if is_folder:
        raise InputFileError(f"{what} '{path}' is a folder, expected a file", hint="name a file inside it")
    if not exists:
        raise missing_file(path, what, "check the path; relative paths start at the current folder")
    if not os.access(path, os.R_OK):
        raise InputFileError(f"{what} '{path}' cannot be read", hint="check its permissions")


def require_name(path: Path | str, *, is_path: bool = True) -> None:
    r"""Check that a name is the same for Python, for recipes and reports, and for libraries in C++: UTF-8.

    Text that is not a path only has to be UTF-8.

    Example:
        >>> require_name("runs/\udcff")
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.InputFileError: PTQ-FILE-001: the name '\xff' is not UTF-8
        hint: rename it: recipes, reports and the libraries for models have names in UTF-8 only
    """
    encoding = sys.getfilesystemencoding()
    for name in Path(path).parts:
        # What Python cannot decode it keeps as halves of surrogate pairs, which no other encoding has.
        found = name.encode("utf-8", "surrogateescape")
        is_utf8 = found == name.encode("utf-8", "replace")
        if is_utf8 and (not is_path or name.encode(encoding, "replace") == found):
            continue
        shown = found.decode("utf-8", "backslashreplace")
        if encoding == "utf-8":
            raise InputFileError(
                f"the name '{shown}' is not UTF-8",
                hint="rename it: recipes, reports and the libraries for models have names in UTF-8 only",
            )
        raise InputFileError(
            f"the name '{shown}' is not {encoding.upper()}, the encoding of names in this locale",
            hint="set PYTHONUTF8=1, or choose a locale in UTF-8: LC_ALL=C.UTF-8",
        )


def read_file(path: Path, what: str) -> bytes:
    """The content of a file, which may be a pipe, such as a shell's ``<(…)``."""
    _require_readable(path, what)
    try:
        return path.read_bytes()
    except OSError as error:  # a disk or a share that fails
        reason = (error.strerror or str(error)).lower()
        raise InputFileError(
            f"{what} '{path}' cannot be read: {reason}", hint="check the file and its permissions"
        ) from error


def read_toml(path: Path, what: str, where: str) -> dict[str, Any]:
    """The tables of a TOML file; messages about its content begin with ``where``."""
    content = read_file(path, what)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise RecipeSyntaxError(f"{where} is text in UTF-16, expected UTF-8", hint="save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")  # with a byte order mark, as editors of Windows write it
        return parse_toml(text.replace("\r\n", "\n").replace("\r", "\n"))  # lines may end as on any system
    except ValueError as error:
        raise RecipeSyntaxError(f"{where} is not valid TOML: {error}", hint="see https://toml.io") from error


MOST_PARTS = 100  # Parts of a dotted key; no key of ours has more than ten.
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_PART}\.[ \t]*+){{{MOST_PARTS}}}{_PART}")


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        ValueError: it is not TOML, is nested too deeply, or has a key of more than ``MOST_PARTS`` parts: the
            time and memory that tomllib takes grow with the square of their number.

    Example:
        >>> parse_toml("a.b = 1")
        {'a': {'b': 1}}
        >>> parse_toml(".".join("a" * 101) + " = 1")
        Traceback (most recent call last):
        ValueError: a key has more than 100 parts
    """
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def is_folder(path: Path) -> bool:
    """Whether there is a folder; not if the path cannot be looked at.

    Example:
        >>> is_folder(Path()), is_folder(Path("no-such-folder")), is_folder(Path("a" * 1000))
        (True, False, False)
    """
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    hash_file(digest, path)
    return digest.hexdigest()


def hash_file(digest: "hashlib._Hash", path: Path) -> None:
    """Add a file's bytes to a digest.

    Example:
        >>> digest = hashlib.sha256()
        >>> hash_file(digest, Path(os.devnull))
        >>> digest.hexdigest()[:8]
        'e3b0c442'
    """
    # Large blocks: between two of them a thread may wait 5 ms for the interpreter while another computes.
    with (
        path.open("rb", buffering=0) as stream,
        mmap.mmap(-1, HASHED_BLOCK) as memory,
        memoryview(memory) as block,
    ):
        while size := stream.readinto(block):
            with block[:size] as read:
                digest.update(read)


def sha256_text(text: str) -> str:
    """The SHA-256 of a text's UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
