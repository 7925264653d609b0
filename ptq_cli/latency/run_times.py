"""How long a run of a model takes where other work is done, too: sessions take turns, and fast runs count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.runtime.session import Session

FAST = 0.1  # the quantile of the runs that counts: other work on the machine only ever adds time
FEWEST_RUNS, MOST_RUNS = 8, 200
RUNS_A_TURN = 4
"""The first of them finds the caches full of another model, and is not among the fast ones."""
LONG = 0.05
"""Seconds of a run that the caches matter little for. A turn has one of them, and four turns are enough."""
FEWEST_LONG_RUNS = 4


@dataclass(frozen=True)
class WholeRuns:
    """How long runs of a whole model take."""

    fast: float
    spread: float


def fast_runs(
    models: Sequence[StoredModel], batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> list[WholeRuns]:
    """How long a run of each model takes, in turns."""
    sessions = [Session(model, threads=threads) for model in models]
    times = take_clocks(sessions, batches, threads=threads, seconds=seconds)
    return [whole_runs(runs) for runs in times]


def take_clocks(
    sessions: Sequence[Session], batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> list[list[float]]:
    """Let sessions take turns, and return the microseconds of each run of each.

    That is processor time of one thread, which leaves out what other processes do, and time by the clock of
    several.
    """
    clock = thread_time if threads == 1 else perf_counter
    times: list[list[float]] = [[] for _ in sessions]
    began = perf_counter()
    for session in sessions:
        session.run(batches[0])  # It allocates, and is not counted.
    is_long = perf_counter() - began > LONG * len(sessions)
    runs, fewest = (1, FEWEST_LONG_RUNS) if is_long else (RUNS_A_TURN, FEWEST_RUNS)
    began, count = perf_counter(), 0
    while count < fewest or (perf_counter() - began < seconds and count < MOST_RUNS):
        for session, found in zip(sessions, times, strict=True):
            for run in range(runs):
                start = clock()
                session.run(batches[(count + run) % len(batches)])
                found.append((clock() - start) * 1e6)
        count += runs
    return times


def whole_runs(times: Sequence[float]) -> WholeRuns:
    """Fast and spread of some run times.

    Example:
        >>> whole_runs([20.0] * 9 + [10.0])
        WholeRuns(fast=19.0, spread=1.0526315789473684)
    """
    fast, middle = np.quantile(times, (FAST, 0.5))
    return WholeRuns(float(fast), float(middle / fast))
