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
                desc=progress.stage,
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


class _Lines:
    """A line when a stage begins, and one every few seconds while it lasts."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.done == 0:
            click.echo(f"{progress.stage} …", err=True)
        elif now - self._last < SECONDS_BETWEEN_LINES:
            return
        else:
            total = f" of {progress.total}" if progress.total is not None else ""
            click.echo(f"{progress.stage}: {progress.done}{total} samples", err=True)
        self._last = now

    def close(self) -> None:
        """Nothing is left on the terminal to clear."""
