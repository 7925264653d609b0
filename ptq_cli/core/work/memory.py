"""How much memory this process takes, and sizes as text."""

import ctypes
import math
import os
import re
import sys
from pathlib import Path

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
M_MMAP_THRESHOLD = -3
"""In malloc.h of glibc."""
OWN_BLOCK = 1 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def resident_bytes() -> int:
    """Return how much memory this process takes now, or its peak where the system does not tell.

    Example:
        >>> resident_bytes() > 1_000_000
        True
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def most_resident_bytes() -> int:
    """Return the peak memory of this process so far.

    Example:
        >>> most_resident_bytes() >= resident_bytes() > 0
        True
    """
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    # The kernel counts in batches for each core, so the two may differ a little.
    return max(int(found.group(1)) * 1024, resident_bytes())


def give_back_freed_blocks() -> None:
    """Let blocks of a MiB and more go back to the system as soon as they are freed, for the whole process.

    The allocator of glibc keeps freed blocks for the thread that had them, and more of them the larger they
    were: which thread is faster then decides the peak, by tens of megabytes.

    Edge case:
        Nothing happens with another allocator.

    Source:
        mallopt(3): setting ``M_MMAP_THRESHOLD`` also ends its dynamic adjustment.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # Windows names a library, macOS has no such function.
        return
    mallopt(M_MMAP_THRESHOLD, OWN_BLOCK)


def parse_size(text: str) -> int | None:
    """Return the number of bytes that a text such as ``2GiB`` stands for, or None if it is not a valid size.

    Units:
        ``KiB``, ``MiB``, ``GiB`` and ``TiB`` are powers of 1024, ``KB``, ``MB``, ``GB`` and ``TB`` of 1000;
        case does not matter. A number alone is bytes.

    Example:
        >>> parse_size("2GiB"), parse_size("1.5 MB"), parse_size("64"), parse_size("much")
        (2147483648, 1500000, 64, None)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[2] or "B").upper() not in UNITS:
        return None
    size = float(match[1]) * UNITS[(match[2] or "B").upper()]
    return int(size) if math.isfinite(size) else None
