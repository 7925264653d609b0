"""Files that a user names: they exist and can be read, or the error says why not; and their hashes."""

import hashlib
import mmap
import os
from pathlib import Path

from ptq_cli.core.errors import InputFileError

HASHED_BLOCK = 1 << 23
"""Number of bytes that are read and hashed at a time."""


def require_file(path: Path, what: str) -> Path:
    """Return ``path`` if it is a readable file.

    Args:
        path: the file.
        what: what it is to the user, such as ``"model"``; it begins the message.

    Raises:
        InputFileError: it is missing, a folder, or unreadable.

    Example:
        >>> require_file(Path("no-such-file.pt"), "model")
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.InputFileError: PTQ-FILE-001: model 'no-such-file.pt' does not exist
        hint: check the path; relative paths start at the current folder
    """
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:  # a folder on the way that may not be entered, or a name that is too long
        reason = (error.strerror or str(error)).lower()
        raise InputFileError(f"{what} '{path}' cannot be read: {reason}", hint="check the path") from error
    if is_folder:
        raise InputFileError(f"{what} '{path}' is a folder, expected a file", hint="name a file inside it")
    if not exists:
        raise InputFileError(
            f"{what} '{path}' does not exist",
            hint="check the path; relative paths start at the current folder",
        )
    if not os.access(path, os.R_OK):
        raise InputFileError(f"{what} '{path}' cannot be read", hint="check its permissions")
    return path


def read_file(path: Path, what: str) -> bytes:
    """Return the content of a file.

    Args:
        path: the file.
        what: what it is to the user, such as ``"report"``; it begins the message.

    Raises:
        InputFileError: it is missing, a folder, or cannot be read.
    """
    try:
        return require_file(path, what).read_bytes()
    except OSError as error:  # a disk or a share that fails
        reason = (error.strerror or str(error)).lower()
        raise InputFileError(
            f"{what} '{path}' cannot be read: {reason}", hint="check the file and its permissions"
        ) from error


def is_folder(path: Path) -> bool:
    """Tell whether there is a folder; not if the path cannot be looked at.

    Example:
        >>> is_folder(Path()), is_folder(Path("no-such-folder")), is_folder(Path("a" * 1000))
        (True, False, False)
    """
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    hash_file(digest, path)
    return digest.hexdigest()


def hash_file(digest: "hashlib._Hash", path: Path) -> None:
    """Add a file's bytes to a digest.

    Raises:
        OSError: the file cannot be read.

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
    """Return the SHA-256 of a text's UTF-8 bytes, in hexadecimal.

    Example:
        >>> sha256_text("")[:8]
        'e3b0c442'
    """
    return hashlib.sha256(text.encode()).hexdigest()
