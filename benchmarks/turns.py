"""Contestants that wait in their own processes until it is their turn."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """The cost of one turn.

    Attributes:
        startup: seconds until the first data were read.
        seconds: wall time from then on.
        processors: processor time from then on, in seconds.
        peak: peak memory of the process so far, in bytes.
    """

    startup: float
    seconds: float
    processors: float
    peak: int


class Contestant:
    """A process that works on request."""

    def __init__(
        self, name: str, model: Path, data: Path, samples: int, module: str = "benchmarks.contestants"
    ) -> None:
        words = [sys.executable, "-m", module, name, str(model), str(data), str(samples)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def work(self) -> Answer:
        """Let the process work once."""
        assert self._process.stdin is not None  # noqa: S101 - it was opened as a pipe
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Answer(**self._read())

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate("")

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it was opened as a pipe
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):  # output of a library
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant ended with exit status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Marginal:
    """One contestant with many samples and with few: their difference is free of all that happens once."""

    def __init__(self, name: str, model: Path, data: Path, many: int, few: int) -> None:
        self._many = Contestant(name, model, data, many)
        self._few = Contestant(name, model, data, few)

    def work(self) -> Answer:
        """Let both work once, one after the other; the start-up and the peak are those of many samples."""
        many, few = self._many.work(), self._few.work()
        return Answer(
            startup=many.startup,
            seconds=many.startup + many.seconds - few.startup - few.seconds,
            processors=many.processors - few.processors,
            peak=many.peak,
        )

    def close(self) -> None:
        """Let both processes end."""
        self._many.close()
        self._few.close()
