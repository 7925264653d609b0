"""Progress of long work: a bar on a terminal, otherwise a plain line every few seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ptq_cli.core.memory import resident_bytes
from ptq_cli.core.progress import Progress, ProgressCallback, WorkProgress
from ptq_cli.core.words import format_bytes
from ptq_cli.terminal.output import is_quiet, tell
from ptq_cli.terminal.phrases import printable

SECONDS_BETWEEN_LINES = 5.0
# Of work that is counted, before its speed says anything about what is left.
_LEAST_SECONDS, LEAST_PARTS = 10.0, 3
WORK_BAR = "{desc}: {percentage:3.0f}%|{bar}| "
BAR_COLUMNS, ANY_COLUMNS = 6, 80  # A bar is at least so wide; and a terminal that does not say how wide it is


@contextmanager
def shown_progress() -> Iterator[ProgressCallback]:
    """Yield a callback that shows progress on stderr, and clear the display afterwards."""
    if is_quiet():
        yield lambda _progress: None
        return
    display = _Bar() if sys.stderr.isatty() else _Lines()

    def update(progress: Progress) -> None:
        if progress.note:
            display.close()
            tell(f"note: {progress.note}")
        else:
            display.update(progress)

    try:
        yield update
    finally:
        display.close()


class _Pace:
    """How far work is, and how long it still takes once enough was seen of how fast it is."""

    def __init__(self) -> None:
        self._begun: tuple[WorkProgress, float] | None = None

    def left(self, progress: WorkProgress, now: float) -> str:
        """Return how long it still takes, with a comma before it; nothing while that is not known."""
        # Measured from the first part: before it, sessions are made and code is compiled.
        if self._begun is None or self._begun[0].stage != progress.stage or not self._begun[0].done:
            self._begun = progress, now
        first, begun = self._begun
        seconds = now - begun
        if seconds < _LEAST_SECONDS or progress.parts - first.parts < LEAST_PARTS:
            return ""
        if progress.total is None or progress.done <= first.done:
            return ""
        left = (progress.total - progress.done) * seconds / (progress.done - first.done)
        return f", {format_seconds(left)} left"


class _Bar:
    """One line that is redrawn: a stage's name, and a bar once its samples are counted."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._make = tqdm
        self._bar: tqdm[object] | None = None
        self._stage = ""
        self._pace = _Pace()

    def update(self, progress: Progress) -> None:
        if progress.stage != self._stage:
            self.close()
            self._stage = progress.stage
            self._bar = self._make(
                total=progress.total,
                initial=progress.done,  # Samples of an earlier run do not count for the speed.
                desc=printable(progress.stage),
                unit=f" {progress.unit}",
                leave=False,
                dynamic_ncols=True,
                bar_format="{desc} …" if progress.done == 0 else None,
            )
        if self._bar is not None:
            self._bar.total = progress.total  # What is found may change what is planned.
            begins = progress.done > 0 and self._bar.bar_format == "{desc} …"
            if progress.done:
                # From now on there is progress to draw.
                memory = f"memory {format_bytes(resident_bytes())}"
                self._bar.bar_format = self._work_bar(progress, memory)
                self._bar.set_postfix_str(memory, refresh=False)
            self._bar.update(progress.done - self._bar.n)
            if begins:
                self._bar.refresh()

    def _work_bar(self, progress: Progress, memory: str) -> str | None:
        """Return a bar with as many words as fit beside it; None for one that counts samples."""
        if not isinstance(progress, WorkProgress) or self._bar is None:
            return None
        left = self._pace.left(progress, time.monotonic())
        short, long = (printable(progress.describe(short=short)) + left for short in (True, False))
        columns = self._bar.format_dict["ncols"] or ANY_COLUMNS
        room = columns - len(self._bar.desc) - len(": 100%|| ") - BAR_COLUMNS
        words = next((text for text in (f"{long}, {memory}", long) if len(text) <= room), short)
        return WORK_BAR + words.replace("{", "{{").replace("}", "}}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._stage = None, ""


class _Lines:
    """A line when a stage begins, and one every few seconds while it lasts."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._first: Progress | None = None
        self._pace = _Pace()
        self._begun = self._last

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        rung = (
            progress.describe() + self._pace.left(progress, now) if isinstance(progress, WorkProgress) else ""
        )
        if self._first is None or progress.stage != self._first.stage:
            self._first, self._begun = progress, now
        if progress.done == 0:
            tell(f"{progress.stage} …")
        elif now - self._last < SECONDS_BETWEEN_LINES:
            return
        else:
            total = f" of {progress.total}" if progress.total is not None else ""
            counted = rung or f"{progress.done}{total} {progress.unit}"
            parts = [counted, *(() if rung else self._speed(progress, now))]
            tell(f"{progress.stage}: {', '.join(parts)}, memory {format_bytes(resident_bytes())}")
        self._last = now

    def _speed(self, progress: Progress, now: float) -> Iterator[str]:
        # Measured from the first report: before it were start-up and the samples of an earlier run.
        done = progress.done - self._first.done if self._first is not None else 0
        if done <= 0 or now <= self._begun:
            return
        speed = done / (now - self._begun)
        yield f"{speed:.3g} {progress.unit}/s" if speed < 100 else f"{speed:.0f} {progress.unit}/s"
        if progress.total is not None:
            yield f"{format_seconds((progress.total - progress.done) / speed)} left"

    def close(self) -> None:
        """Do nothing: there is nothing to clear on the terminal."""


def format_seconds(seconds: float) -> str:
    """Write a duration for a reader.

    Example:
        >>> format_seconds(4.2), format_seconds(150), format_seconds(7500)
        ('4 s', '2:30 min', '2:05 h')
    """
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
