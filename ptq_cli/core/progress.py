"""How long work reports its progress, without knowing whether there is a terminal."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
        """Return where it is, for a narrow terminal without names."""


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
        """Return where it is.

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
        """Return where it is, which is short.

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


# When it is time for the next checkpoint.


COST_LIMIT = 0.01
"""Largest share of the time for writing checkpoints; where it would be more, they are written less often."""


class Schedule:
    """Tells when a checkpoint is due: every so many seconds, but without taking more than 1 % of the time.

    Example:
        >>> seconds = iter([0.0, 5.0, 30.0, 30.0, 31.0, 60.0])
        >>> schedule = Schedule(30.0, clock=lambda: next(seconds))
        >>> schedule.is_due(), schedule.is_due()
        (False, True)
        >>> with schedule.writing():  # takes a second, so that the next one waits until 2 are 1 % of the time
        ...     pass
        >>> schedule.is_due()
        False
    """

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._start = clock()
        self._due = self._start + every
        self._spent = 0.0

    def is_due(self) -> bool:
        """Tell whether a checkpoint is due."""
        return self._clock() >= self._due

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time that the block takes, and decide when the next checkpoint is due."""
        start = self._clock()
        yield
        end = self._clock()
        self._spent += end - start
        self._due = end + self._every
        if self._every:
            # The next checkpoint will cost about as much, and must stay within the limit too.
            self._due = max(self._due, self._start + (self._spent + end - start) / COST_LIMIT)


# Work that several threads share, and that ends soon when it is not wanted any more.


Item = TypeVar("Item")
Result = TypeVar("Result")


def pooled_results(
    pool: ThreadPoolExecutor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    after_each: Callable[[int], None],
) -> list[Result]:
    """Return what a function makes of each item, in order.

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
