"""The time that a tuning may take."""

import time

from ptq_cli.core.errors import TimeBudgetError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.pipeline.tuning.candidate import TimeIsOverError
from ptq_cli.pipeline.tuning.candidate_models import Party


class BudgetClock:
    """Ends the climb when the time budget is over: several processes between candidates, one anywhere."""

    def __init__(self, seconds: float | None, progress: ProgressCallback, party: Party) -> None:
        self._party = party
        self._begin = time.monotonic()
        self._seconds, self._progress = seconds, progress
        self.begun = False
        self.allow(1.0)

    def allow(self, share: float) -> None:
        """Let the climb go on until so much of the time has passed, counted from the beginning."""
        self._end = self._begin + share * self._seconds if self._seconds is not None else None

    def is_over(self) -> bool:
        """Return whether no time is left, by the clock of the first process."""
        return self._party.agreed(self._has_passed)

    def _has_passed(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def progress(self, step: Progress) -> None:
        """Hand on progress, unless the time is over.

        Raises:
            TimeIsOverError: it is.
            TimeBudgetError: it is, and nothing has been measured.
        """
        self._progress(step)
        self._party.go_on()
        if self._party.group is not None or not self._has_passed():
            return
        if self.begun:
            raise TimeIsOverError
        raise TimeBudgetError(
            f"the time budget of {self._seconds:g} s was over before the first candidate was measured",
            hint="allow more with --time-budget, or pass fewer --samples",
        )

    def stop(self) -> None:
        """What follows may take its time."""
        self._end = None
