"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ptq_cli.core.progress import Progress, ProgressCallback

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown_progress() -> Iterator[ProgressCallback]:
    """Give a callback that shows progress on stderr, and clear up after it."""
    display = _Bar() if sys.stderr.isatty() else _Lines()
    try:
        yield display.update
    finally:
        display.close()


class _Bar:
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
                total=progress.total, desc=progress.stage, unit=" samples", leave=False, dynamic_ncols=True
            )
        if self._bar is not None:
            self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Lines:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        total = f" of {progress.total}" if progress.total is not None else ""
        click.echo(f"{progress.stage}: {progress.done}{total} samples", err=True)

    def close(self) -> None:
        """Nothing is left on the terminal to clear."""
