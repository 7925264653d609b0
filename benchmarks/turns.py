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
    """What one turn took.

    Attributes:
        startup: seconds until the data were first read.
        seconds: by the clock, from then on.
        processors: seconds of processor time, from then on.
        peak: bytes of memory, of the process since it began.
    """

    startup: float
    seconds: float
    processors: float
    peak: int


class Contestant:
    """A process that works when it is told to.

    Args:
        name: what it does, one of the contestants of ``module``.
        model: its model.
        data: its data.
        samples: how many of them.
        module: whose ``main`` is that of ``benchmarks.contestants``.
    """

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
        """The process's number."""
        return self._process.pid

    def work(self) -> Answer:
        """Let it work once."""
        assert self._process.stdin is not None  # noqa: S101 - it was opened as a pipe
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Answer(**self._read())

    def close(self) -> None:
        """Let it end."""
        self._process.communicate("")

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it was opened as a pipe
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):  # what a library prints
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
