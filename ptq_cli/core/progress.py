"""How long work reports its progress, without knowing whether there is a terminal."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One step of long work.

    Attributes:
        stage: what is being done, such as ``"calibrate"``.
        done: how many samples are done; 0 announces a stage that begins.
        total: how many there are, or None if that is not known.
        note: a further message, such as that an earlier calibration is continued; usually empty.
    """

    stage: str
    done: int
    total: int | None
    note: str = ""


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore progress: the default of the Python API.

    Example:
        >>> silent(Progress("calibrate", 1, 2))
    """
    del progress
