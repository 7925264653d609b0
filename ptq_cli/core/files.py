"""Files that are either complete or absent: write to a temporary name, then rename."""

import contextlib
import hashlib
import mmap
import os
import secrets
import shutil
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

from ptq_cli.core.errors import InputFileError, OutputFileError

PARTIAL_SUFFIX = ".partial"
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


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; rename it into place when the block succeeds.

    If the block raises, is interrupted, or the disk is full, the temporary file is removed and an earlier
    file at ``path`` is untouched.

    Raises:
        OutputFileError: the folder cannot be made or written to, or the disk is full.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_write(folder / "a.txt") as partial:
        ...     _ = partial.write_text("whole")
        >>> [entry.name for entry in folder.iterdir()]
        ['a.txt']
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        if path.is_dir():
            raise OutputFileError(f"cannot write '{path}': it is a folder", hint="name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputFileError(
            f"cannot write '{path}': {reason.lower()}", hint="check the folder's permissions and free space"
        ) from error
    finally:
        # The temporary file may not exist, or its folder may be read-only; neither needs a message.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically.

    Raises:
        OutputFileError: it cannot be written.
    """
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


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


Content = bytes | Path
"""What is written to a file: bytes, or a finished file of a ``PartialFolder``, which is moved."""


class PartialFolder:
    """A folder for files that are too large to be held until all are written together.

    It is removed with its last user, together with every file that was not moved out of it. It is created
    where the files will be, so that they are moved without being copied.

    Attributes:
        path: the folder.

    Raises:
        OutputFileError: it cannot be created.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "data"
        >>> folder = PartialFolder(target.parent, target.name)
        >>> _ = (folder.path / "data").write_bytes(b"large")
        >>> write_together({target: folder.path / "data"})
        >>> del folder
        >>> [entry.name for entry in target.parent.iterdir()]
        ['data']
    """

    def __init__(self, beside: Path, name: str) -> None:
        self.path = beside / f".{name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputFileError(
                f"cannot write in '{beside}': {reason}", hint="name another folder"
            ) from error
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder now, with its content."""
        self._remove()


def write_together(contents: Mapping[Path, Content]) -> None:
    """Write several files so that either all are new or all are as they were.

    Each is first written or moved to a temporary name; only when all are on disk are they renamed, with an
    interrupt held back until the last rename.

    Raises:
        OutputFileError: a file cannot be written; no file was changed.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_together({folder / "a": b"1", folder / "b": b"2"})
        >>> sorted(entry.name for entry in folder.iterdir())
        ['a', 'b']
    """
    with _deferred_interrupt(), contextlib.ExitStack() as stack:
        for path, content in contents.items():
            partial = stack.enter_context(atomic_write(path))
            if isinstance(content, Path):
                content.replace(partial)
            else:
                partial.write_bytes(content)
        # The renames happen as the stack unwinds, now that every file is on disk.
    for content in contents.values():
        if isinstance(content, Path):
            with contextlib.suppress(OSError):  # Not empty yet: it is removed with its last user.
                content.parent.rmdir()


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Delay the effect of Ctrl-C until after the block; only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
