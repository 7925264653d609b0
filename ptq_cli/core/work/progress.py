"""How long work reports its progress, without knowing whether there is a terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Progress:
    """One step of long work.

    Attributes:
        stage: what is being done, such as ``"calibrate"``.
        done: how many are done; 0 announces a stage that begins.
        total: how many there are, or None if that is not known.
        note: a further message, such as that an earlier calibration is continued; usually empty.
        unit: what is counted.
    """

    unit: ClassVar[str] = "samples"

    stage: str
    done: int
    total: int | None
    note: str = ""


class LayerProgress(Progress):
    """One step of work that goes from layer to layer.

    Example:
        >>> LayerProgress("recover", 1, 26).unit
        'layers'
    """

    unit = "layers"


class RunProgress(Progress):
    """One step of work that runs a model again and again, each time a little changed.

    Example:
        >>> RunProgress("ranges", 1, 300).unit
        'runs'
    """

    unit = "runs"


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore progress: the default of the Python API.

    Example:
        >>> silent(Progress("calibrate", 1, 2))
    """
    del progress
