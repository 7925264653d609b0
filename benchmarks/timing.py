"""Ratios that changes in the machine's speed do not distort: the candidates take turns."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Work = Callable[[], object]


def seconds(work: Work, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of one call, in seconds; ``time.thread_time`` leaves out what else the machine does."""
    start = clock()
    work()
    return clock() - start


def take_turns(
    works: Sequence[Work], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Return the seconds of each piece of work in each round, after one warm-up of each.

    Example:
        >>> [len(times) for times in take_turns([int, float], rounds=3)]
        [3, 3]
    """
    for work in works:
        work()
    times = [[seconds(work, clock) for work in works] for _ in range(rounds)]
    return [list(column) for column in zip(*times, strict=True)]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios of all rounds.

    Example:
        >>> median_ratio([2.0, 4.0, 3.0], [1.0, 1.0, 1.0])
        3.0
    """
    return median(one / other for one, other in zip(above, below, strict=True))


def run_ptq(words: Sequence[str], folder: Path) -> None:
    """Run ptq in its own process, and raise an error if it fails."""
    subprocess.run([sys.executable, "-m", "ptq_cli", *words], cwd=folder, check=True, capture_output=True)


def evaluate_run(run: str, folder: Path, *flags: str) -> dict[str, Any]:
    """Return the report of a run on the evaluation data in the folder's ``ptq.toml``, with more flags."""
    command = [
        sys.executable,
        "-m",
        "ptq_cli",
        "evaluate",
        "--run",
        run,
        "--json",
        "--set",
        "evaluation.latency=false",
        *flags,
    ]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def peak_anonymous_bytes(words: Sequence[str], folder: Path) -> int:
    """Return the peak of a ptq command's memory that is no page of a file, in bytes; Linux tells it.

    It is looked at 50 times a second: a shorter peak may be missed.
    """
    command = [sys.executable, "-m", "ptq_cli", *words]
    most = 0
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text())
            most = max(most, int(found.group(1)) * 1024 if found else 0)
            time.sleep(0.02)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    return most


def peak_bytes(words: Sequence[str], folder: Path) -> int:
    """Return the peak resident memory of a ptq command, in bytes."""
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run(sys.argv[1:], check=True, capture_output=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, sys.executable, "-m", "ptq_cli", *words]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return int(done.stdout) * 1024
