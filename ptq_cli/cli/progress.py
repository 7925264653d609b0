"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ptq_cli.cli.output import tell
from ptq_cli.cli.text import printable
from ptq_cli.core.progress import Progress, ProgressCallback

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown_progress() -> Iterator[ProgressCallback]:
    """Give a callback that shows progress on stderr, and clear up after it."""
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


class _Bar:
    """One line that is drawn over: a stage's name, and a bar once its samples are counted."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._make = tqdm
        self._bar: tqdm[object] | None = None
        self._stage = ""

    def update(self, progress: Progress) -> None:
        if progress.stage != self._stage:
            self.close()
            self._stage = progress.stage
            self._bar = self._make(
                total=progress.total,
                desc=printable(progress.stage),
                unit=" samples",
                leave=False,
                dynamic_ncols=True,
                bar_format="{desc} …" if progress.done == 0 else None,
            )
        if self._bar is not None:
            self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._stage = None, ""


class _Lines:
    """A line when a stage begins, and one every few seconds while it lasts."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.done == 0:
            tell(f"{progress.stage} …")
        elif now - self._last < SECONDS_BETWEEN_LINES:
            return
        else:
            total = f" of {progress.total}" if progress.total is not None else ""
            tell(f"{progress.stage}: {progress.done}{total} samples")
        self._last = now

    def close(self) -> None:
        """Nothing is left on the terminal to clear."""
