"""When it is time for the next checkpoint."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COST_LIMIT = 0.01
"""Share of the time that writing may take; where it would take more, checkpoints are farther apart."""


class Schedule:
    """Tells when a checkpoint is due: every so many seconds, and never at more than 1 % of the time.

    Args:
        every: seconds between checkpoints, at least; 0 for one whenever it is asked.
        clock: seconds that only grow.

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
        """Tell whether it is time for one."""
        return self._clock() >= self._due

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time that the block takes, and settle when the next one is due."""
        start = self._clock()
        yield
        end = self._clock()
        self._spent += end - start
        self._due = end + self._every
        if self._every:
            # Not before the next one, which will cost about as much, is within the limit as well.
            self._due = max(self._due, self._start + (self._spent + end - start) / COST_LIMIT)
