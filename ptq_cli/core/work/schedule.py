"""When it is time for the next checkpoint."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COST_LIMIT = 0.01
"""Largest share of the time for writing checkpoints; where it would be more, they are written less often."""


class Schedule:
    """Tells when a checkpoint is due: every so many seconds, but without taking more than 1 % of the time.

    Args:
        every: minimum number of seconds between checkpoints; with 0 a checkpoint is always due.
        clock: returns seconds that only increase.

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
