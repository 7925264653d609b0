"""The part of the machine that a command may use."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ptq_cli.runtime.device import Device


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The part of the machine that a command may use.

    Attributes:
        device: where a calibration runs and counts.
        threads: how many compute and count, at least 1.
        prefetch: how many batches may be decoded before they are needed.
        memory: bytes of the host's memory that a calibration may take; None for any number.
    """

    device: Device
    threads: int
    prefetch: int
    memory: int | None


def usable_cores() -> int:
    """Return how many cores this process may use.

    Example:
        >>> usable_cores() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_counts(asked: Sequence[int]) -> tuple[int, ...]:
    """Return numbers of threads, each once, where 0 means one per core.

    Example:
        >>> thread_counts([1, 4, 1])
        (1, 4)
    """
    return tuple(dict.fromkeys(threads or usable_cores() for threads in asked))
