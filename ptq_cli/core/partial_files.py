"""Temporary names that tell which process writes them, and what a killed one left behind.

On Linux only: elsewhere nothing is removed. What another machine, another container, another user or an
earlier boot wrote is left alone, because nobody here can tell whether its process lives.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from functools import cache
from pathlib import Path

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
