"""Sessions take turns at the same inputs, so that a machine that drifts favors none of them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.tensors import Array
from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.runtime.engines.engine import OpenedModel

Batch = Mapping[str, Array]
RunsOfTurns = tuple[tuple[float, ...], ...]
"""Seconds of the runs of one model, by turn."""

RUNS_A_TURN = 3
"""Their median leaves out one that something else on the machine held up."""
TURNS = 20
"""Where that many turns do not fit into the time, a turn has one run."""
LEAST_TURNS = 5
SHORT = 0.05
"""Seconds. A shorter run is slower just after another model's, which emptied the caches."""
WARM_UP = 3
LONG_WARM_UP = 0.5
"""Seconds after which a session is warm, however few runs that were."""


@dataclass(frozen=True)
class Turns:
    """What each run took.

    Attributes:
        seconds: by the clock; by model, then by turn, then by run.
        processors: seconds of processor time of all threads, likewise.
    """

    seconds: tuple[RunsOfTurns, ...]
    processors: tuple[RunsOfTurns, ...]

    def parts(self, most: int) -> list["Turns"]:
        """Return the turns in so many parts, each of turns that followed one another; fewer of few turns.

        Example:
            >>> clock = (((1.0,), (2.0,), (3.0,)),)
            >>> [part.seconds for part in Turns(clock, clock).parts(2)]
            [(((1.0,),),), (((2.0,), (3.0,)),)]
        """
        turns = len(self.seconds[0])
        count = max(1, min(most, turns))
        ends = [turns * index // count for index in range(count + 1)]
        return [
            Turns(
                tuple(model[begin:end] for model in self.seconds),
                tuple(model[begin:end] for model in self.processors),
            )
            for begin, end in pairwise(ends)
        ]


def take_turns(
    sessions: Sequence[OpenedModel],
    batches: Sequence[Batch],
    *,
    seconds: float = 10.0,
    runs: int | None = None,
    most_runs: int | None = None,
    progress: ProgressCallback = silent,
    stage: str = "measuring",
) -> Turns:
    """Run sessions in turns, and return what each run took.

    A turn is a few runs of each session, one session after the other, on one batch; the next turn begins with
    the next session and takes the next batch. Before the first turn each is warmed up. Where a run is short,
    the first of a session's runs in a turn is not counted.

    Args:
        sessions: all take the same inputs.
        batches: are used one after the other, again and again.
        seconds: how long it may take, about; there are always five turns.
        runs: how many runs of each session are counted, at least; instead of ``seconds``.
        most_runs: how many runs of each session are enough, where ``seconds`` would allow more.
        progress: is told after each turn.
        stage: what ``progress`` is told.

    Raises:
        RecipeValueError: ``seconds`` is not above 0, or ``runs`` below 1.
        RuntimeFailedError: the runtime failed.
    """
    require_length(seconds, runs)
    progress(Progress(stage, 0, None))
    longest = [_warm_up(session, batches) for session in sessions]
    fitting = runs / RUNS_A_TURN if runs is not None else seconds / (sum(longest) * (RUNS_A_TURN + 1))
    counted = RUNS_A_TURN if fitting >= TURNS else 1
    settles = [len(sessions) > 1 and one < SHORT for one in longest]
    wanted = -(-runs // counted) if runs is not None else None
    enough = float("inf") if most_runs is None else most_runs / counted
    clocks: list[list[tuple[float, ...]]] = [[] for _ in sessions]
    processors: list[list[tuple[float, ...]]] = [[] for _ in sessions]
    end, turn = time.perf_counter() + seconds, 0
    while (
        turn < wanted
        if wanted is not None
        else turn < LEAST_TURNS or (turn < enough and time.perf_counter() < end)
    ):
        batch = batches[turn % len(batches)]
        for offset in range(len(sessions)):
            index = (turn + offset) % len(sessions)
            if settles[index]:
                sessions[index].run(batch)
            clock, processor = _timed(sessions[index], batch, counted)
            clocks[index].append(clock)
            processors[index].append(processor)
        turn += 1
        done = turn * counted * batch_size(batch)
        progress(Progress(stage, done, done // turn * wanted if wanted is not None else None))
    return Turns(tuple(map(tuple, clocks)), tuple(map(tuple, processors)))


def batch_size(inputs: Batch) -> int:
    """Return how many samples a batch has: the length of the first axis; 1 where inputs differ in it.

    Example:
        >>> import numpy as np
        >>> batch_size({"x": np.zeros((8, 3)), "scale": np.zeros(())})
        8
    """
    sizes = {array.shape[0] for array in inputs.values() if array.ndim}
    return sizes.pop() if len(sizes) == 1 else 1


def require_length(seconds: float, runs: int | None) -> None:
    """Refuse a length of a measurement that makes no sense.

    Raises:
        RecipeValueError: ``seconds`` is not above 0, or ``runs`` below 1.
    """
    if not 0 < seconds < float("inf"):
        raise RecipeValueError(f"seconds must be above 0, got {seconds:g}", hint="10 is usual")
    if runs is not None and runs < 1:
        raise RecipeValueError(f"runs must be at least 1, got {runs}", hint="100 is usual")


def _warm_up(session: OpenedModel, batches: Sequence[Batch]) -> float:
    """Run a session a few times, and return the seconds of the last run."""
    begin, last = time.perf_counter(), 0.0
    for index in range(WARM_UP):
        (last, *_), _ = _timed(session, batches[index % len(batches)], 1)
        if time.perf_counter() - begin > LONG_WARM_UP:
            break
    return last


def _timed(session: OpenedModel, batch: Batch, runs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    clocks, processors = [], []
    for _ in range(runs):
        processor, clock = time.process_time(), time.perf_counter()
        session.run(batch)
        clocks.append(time.perf_counter() - clock)
        processors.append(time.process_time() - processor)
    return tuple(clocks), tuple(processors)
