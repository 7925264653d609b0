"""Progress of long work, told without knowing whether there is a terminal, and work that threads share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, TypeVar


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


class WorkProgress(Progress, ABC):
    """One step of work whose parts are not alike, so that what is counted is the work of each."""

    unit: ClassVar[str] = "products"

    @property
    @abstractmethod
    def parts(self) -> int:
        """How many parts are done."""

    @abstractmethod
    def describe(self, *, short: bool = False) -> str:
        """Where it is, for a narrow terminal without names."""


@dataclass(frozen=True)
class RungProgress(WorkProgress):
    """One step of a rung of recovery, which goes from layer to layer.

    Attributes:
        layer: that is done, the ``number``-th of so many ``layers``.
        gain_db: by how much the error of the layers so far fell, the median.
    """

    layer: str = ""
    number: int = 0
    layers: int = 0
    gain_db: float = 0.0

    @property
    def parts(self) -> int:
        """How many layers are done."""
        return self.number

    def describe(self, *, short: bool = False) -> str:
        """Where it is.

        Example:
            >>> RungProgress("recover (round)", 5, 9, layer="fc", number=2, layers=3, gain_db=4.21).describe()
            '2 of 3 layers (fc), gain 4.2 dB'
        """
        name = "" if short else f" ({self.layer})"
        return f"{self.number} of {self.layers} layers{name}, gain {self.gain_db:.1f} dB"


@dataclass(frozen=True)
class RunProgress(WorkProgress):
    """One step of work that runs a model again and again, each time a little changed.

    Attributes:
        number: of the runs that are done, of so many ``runs``; None if that is not known.
    """

    number: int = 0
    runs: int | None = None

    @property
    def parts(self) -> int:
        """How many runs are done."""
        return self.number

    def describe(self, *, short: bool = False) -> str:
        """Where it is, which is short.

        Example:
            >>> RunProgress("ranking layers", 5, 900, number=2, runs=300).describe()
            '2 of 300 runs'
        """
        del short
        total = f" of {self.runs}" if self.runs is not None else ""
        return f"{self.number}{total} runs"


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore progress: the default of the Python API."""
    del progress


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def pooled_results(
    pool: ThreadPoolExecutor,
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    after_each: Callable[[int], None],
) -> list[_Result]:
    """Results of a function for each item, in order.

    ``after_each`` is told here how many are done. If it raises, no further item is begun.

    Example:
        >>> with ThreadPoolExecutor(2) as pool:
        ...     pooled_results(pool, abs, [-1, 2, -3], lambda done: None)
        [1, 2, 3]
    """
    futures = [pool.submit(function, item) for item in items]
    found = []
    try:
        for future in futures:
            found.append(future.result())
            after_each(len(found))
    finally:
        for future in futures:
            future.cancel()
    return found
