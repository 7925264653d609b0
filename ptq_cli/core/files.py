"""Files that are complete or absent: written to a temporary name that tells its process, then renamed.

On Linux only: elsewhere nothing is removed. What another machine, another container, another user or an
earlier boot wrote is left alone, because nobody here can tell whether its process lives.

What is replaced is always a regular file. A symbolic link stays and the file that it points to is replaced;
a device, a pipe or a socket is refused. The new file has the owner and the permissions of the earlier one.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import signal
import stat
import threading
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.read_files import require_name, url_of

PARTIAL_SUFFIX = ".partial"
_OWNED = re.compile(rf"\..+\.[0-9a-f]{{8}}\.([0-9a-f]{{8}})-(\d+)-(\d+){re.escape(PARTIAL_SUFFIX)}")
# Field of ``/proc/PID/stat`` behind the command's name: when the process started (proc(5): 22).
STARTED = 19


def partial_name(name: str) -> str:
    """A new hidden name for a file or folder that will be ``name``, with this process in it."""
    token, place, pid = secrets.token_hex(4), _place(), os.getpid()
    owner = f".{place}-{pid}-{_started(pid)}" if place else ""
    return f".{name}.{token}{owner}{PARTIAL_SUFFIX}"


def remove_stale(folder: Path) -> None:
    """Remove what killed processes of this user left of their temporary files, if it was not done before."""
    if _place():
        _remove_stale_once(Path(os.path.realpath(folder)), os.getpid())


@cache
def _remove_stale_once(folder: Path, _pid: int) -> None:
    # A folder that cannot be read, and a file that another process removes first, need no message.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _OWNED.fullmatch(entry.name)
            if found is None or found[1] != _place() or _started(int(found[2])) == found[3]:
                continue
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                    continue  # /proc may hide the processes of others.
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)  # noqa: PTH108 - an entry is no Path


@cache
def _place() -> str:
    """Identity of this boot of this machine and this container; empty where no process can be."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""  # The folder tells of the processes of another container.
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        container = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return hashlib.sha256(boot + str(container).encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """Start of a process, in ticks since the boot; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[STARTED]


def replaced_file(path: Path) -> Path:
    """The file that writing to ``path`` replaces: that which a link points to, or ``path``."""
    require_name(path)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # nothing to replace; making the folder may fail later
        mode = stat.S_IFREG
        if (url := url_of(path)) is not None and not path.parent.exists():
            raise OutputFileError(
                f"cannot write '{url}': it is a URL", hint="name a file here, and upload it"
            ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _cannot_write(path, error) from error
    if stat.S_ISDIR(mode):
        raise OutputFileError(f"cannot write '{path}': it is a folder", hint="name a file")
    if not stat.S_ISREG(mode):
        raise OutputFileError(
            f"cannot write '{path}': it is not a regular file",
            hint="name a regular file, or one that does not exist yet",
        )
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; rename it into place when the block succeeds.

    If the block raises, is interrupted, or the disk is full, the temporary file is removed and an earlier
    file at ``path`` is untouched. If ``path`` is a symbolic link, the file that it points to is replaced.
    """
    target = replaced_file(path)
    partial = target.with_name(partial_name(target.name))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(target.parent)
        yield partial
        _keep_permissions(target, partial)
        partial.replace(target)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        # The temporary file may not exist, or its folder may be read-only; neither needs a message.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _keep_permissions(target: Path, partial: Path) -> None:
    """Give a finished file the owner and the permissions of the file that it replaces, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        earlier = target.stat()
        made = partial.stat()
        if (made.st_uid, made.st_gid) != (earlier.st_uid, earlier.st_gid):
            with contextlib.suppress(PermissionError):  # Only the superuser may give a file away.
                os.chown(partial, earlier.st_uid, earlier.st_gid)
        partial.chmod(stat.S_IMODE(earlier.st_mode))


def _cannot_write(path: Path, error: OSError | ValueError) -> OutputFileError:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    return OutputFileError(
        f"cannot write '{path}': {reason}", hint="check the folder's permissions and free space"
    )


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


# Bytes, or a finished file of a ``PartialFolder``, which is moved.
Content = bytes | Path


class PartialFolder:
    """A folder for files that are too large to be held until all are written together.

    It is removed with its last user, together with every file that was not moved out of it. It is created
    where the files will be, so that they are moved without being copied.

    Attributes:
        path: the folder.
    """

    def __init__(self, beside: Path, name: str) -> None:
        self.path = beside / partial_name(name)
        try:
            beside.mkdir(parents=True, exist_ok=True)
            remove_stale(beside)
            self.path.mkdir(mode=0o700)  # What is moved out of it may replace a file that others cannot read.
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
    """
    with _deferred_interrupt(), contextlib.ExitStack() as stack:
        for path, content in contents.items():
            partial = stack.enter_context(atomic_write(path))
            if isinstance(content, Path):
                shutil.move(content, partial)  # A link may lead to another file system.
            else:
                if path.exists():
                    partial.touch(mode=0o600)  # Its permissions follow; others may not be allowed to read it.
                partial.write_bytes(content)
        # The renames happen as the stack unwinds, now that every file is on disk.
    for content in contents.values():
        if isinstance(content, Path):
            with contextlib.suppress(OSError):  # Not empty yet: it is removed with its last user.
                content.parent.rmdir()


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Delay the effect of Ctrl-C and SIGTERM until after the block; only the main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
