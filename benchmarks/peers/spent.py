"""What a command takes: it runs on one core, and what was measured is kept in a file."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ptq_cli.core.errors import first_line
from ptq_cli.evaluation.bootstrap import Float64Array

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Spent:
    """What a command took, from its start to its end.

    Attributes:
        seconds: processor time.
        peak: resident memory, in bytes, with the pages of files that it mapped.
    """

    seconds: float
    peak: float

    def plus(self, other: "Spent") -> "Spent":
        """Return what both take together, if one's memory comes on top of the other's."""
        return Spent(self.seconds + other.seconds, self.peak + other.peak)

    def times(self, often: float) -> "Spent":
        """Return what is spent so often."""
        return Spent(often * self.seconds, often * self.peak)

    def less(self, other: "Spent") -> "Spent":
        """Return what is spent beyond another command."""
        return self.plus(other.times(-1.0))


@dataclass(frozen=True)
class Way:
    """A way of quantizing.

    Attributes:
        title: in the table.
        output: the file, or the folder, that it writes.
        words: the command.
    """

    title: str
    output: Path
    words: Sequence[str | Path]


def ptq_way(folder: Path, name: str, data: Sequence[str | Path], words: Sequence[str]) -> Way:
    """Return ``ptq quantize`` of a model and its data with some words: no speed is measured."""
    output = folder / f"{name}.onnx"
    rest = ("--run", folder / f"{name}-run", "--output", output, "--set", "evaluation.latency=false")
    command = [sys.executable, "-m", "ptq_cli", "quantize", *data, *words, *rest]
    return Way(f"ptq, `{' '.join(words)}`", output, command)


def measured(way: Way) -> Spent:
    """Run a way of quantizing, or tell what it took earlier; its messages go beside the output.

    Raises:
        RuntimeError: the command failed.
    """
    kept = way.output.with_suffix(".json")
    if kept.exists() and way.output.exists():
        return Spent(**json.loads(kept.read_text("utf-8")))
    for rows in way.output.parent.glob(f"{way.output.stem}.*.npy"):
        rows.unlink()
    print(*way.words, file=sys.stderr, flush=True)
    log = way.output.with_suffix(".log")
    with log.open("wb") as messages:
        # One core is one thread for every library, whatever it reads its number of threads from.
        process = subprocess.Popen(
            [str(word) for word in way.words],
            stdout=messages,
            stderr=subprocess.STDOUT,
            env=os.environ | ONE_THREAD,
            preexec_fn=lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}),  # noqa: PLW1509
        )
        _, status, used = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        last = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
        raise RuntimeError(f"exit status {code}: {first_line(RuntimeError(*last))}")
    spent = Spent(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
    kept.write_text(json.dumps(asdict(spent)), "utf-8")
    return spent


def kept_rows(path: Path, compute: Callable[[], Float64Array]) -> Float64Array:
    """Return rows that were computed earlier, or compute and keep them."""
    if not path.exists():
        np.save(path, compute())  # at the end: what is interrupted is measured again
    rows: Float64Array = np.load(path)
    return rows


def version_in(python: Path, package: str) -> str:
    """Return the version of a package that a Python has."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
