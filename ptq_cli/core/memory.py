"""Memory of this process, and how it gives some back; when a time measured on the machine says something."""

import ctypes
import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

M_MMAP_THRESHOLD = -3  # mallopt's number of the option, from glibc's malloc.h.
OWN_BLOCK = 1 << 20


def resident_bytes() -> int:
    """How much memory this process takes now, or its peak where the system does not tell.

    Example:
        >>> resident_bytes() > 1_000_000
        True
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return _peak_of_the_system()
    return pages * os.sysconf("SC_PAGE_SIZE")


def most_resident_bytes() -> int:
    """The peak memory of this process so far.

    Example:
        >>> most_resident_bytes() >= resident_bytes() > 0
        True
    """
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        return _peak_of_the_system()
    # The kernel counts in batches for each core, so the two may differ a little.
    return max(int(found.group(1)) * 1024, resident_bytes())


def _peak_of_the_system() -> int:
    import resource  # Windows has no such module.

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def give_back_freed_blocks() -> None:
    """Let blocks of a MiB and more go back to the system as soon as they are freed, for the whole process.

    The allocator of glibc keeps freed blocks for the thread that had them, and more of them the larger they
    were: which thread is faster then decides the peak, by tens of megabytes.

    Edge case: Nothing happens with another allocator.
    Source: mallopt(3): setting ``M_MMAP_THRESHOLD`` also ends its dynamic adjustment.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # Windows names a library, macOS has no such function.
        return
    mallopt(M_MMAP_THRESHOLD, OWN_BLOCK)


def give_back_held_blocks() -> None:
    """Let what the allocator of glibc keeps of freed blocks go back to the system once, holes included."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # As above: another allocator.
        return


@contextmanager
def no_cycle_search() -> Iterator[None]:
    """Do not look for reference cycles inside the block; objects without references are freed as usual.

    A graph of some thousand nodes is hundreds of thousands of objects that refer to each other. While they
    are made, Python looks through all of them again and again for what could be freed, and finds nothing:
    half the time of an export. The first search after the block finds what is left over.

    Edge case: If the search was off already, it stays off.

    Example:
        >>> with no_cycle_search():
        ...     gc.isenabled()
        False
        >>> gc.isenabled()
        True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Seconds: a call of ONNX Runtime takes 5 to 6 µs itself, so that shorter runs do not tell models apart.
SHORTEST_RUN = 20e-6
# Median run over a fast one: above it, other work on the machine decides what is measured.
MOST_SPREAD = 2.0


def too_spread(spread: float) -> str:
    """Warning that the machine is too busy, with what to do; empty if it is not.

    ``spread`` is the median run's time over a fast run's.

    Example:
        >>> too_spread(1.4), too_spread(3.0)[:46]
        ('', 'the machine is busy: the median run takes 3.0 ')
    """
    if spread <= MOST_SPREAD:
        return ""
    return (
        f"the machine is busy: the median run takes {spread:.1f} times as long as a fast one; "
        "try again when it is idle"
    )
