"""Sessions take turns at the same inputs, so that a machine that drifts favors none of them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.engine import OpenedModel

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
    """
    require_length(seconds, runs)
    progress(Progress(stage, 0, None))
    longest = [_warm_up(session, batches) for session in sessions]
    fitting = runs / RUNS_A_TURN if runs is not None else seconds / (sum(longest) * (RUNS_A_TURN + 1))
    # Runs in a row keep the caches warm, as in use; for slow models more turns matter more than warm
    # caches.
    counted = RUNS_A_TURN if fitting >= TURNS else 1
    # The other model has just taken the caches: one run that is not counted brings a short one's back.
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
            # Each turn begins with another model, so that none is always the first behind a pause.
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
    """Return how many samples a batch has: the length of the first axis; 1 where inputs differ in it."""
    sizes = {array.shape[0] for array in inputs.values() if array.ndim}
    return sizes.pop() if len(sizes) == 1 else 1


def require_length(seconds: float, runs: int | None) -> None:
    """Refuse a length of a measurement that makes no sense."""
    if not 0 < seconds < float("inf"):
        raise RecipeValueError(f"seconds must be above 0, got {seconds:g}", hint="10 is usual")
    if runs is not None and runs < 1:
        raise RecipeValueError(f"runs must be at least 1, got {runs}", hint="100 is usual")


def _warm_up(session: OpenedModel, batches: Sequence[Batch]) -> float:
    """Run a session a few times, and return the seconds of the last run."""
    begin, last = time.perf_counter(), 0.0
    for index in range(WARM_UP):
        (last, *_), _ = _timed(session, batches[index % len(batches)], 1)
        # A large model is warm after one run, and three would take longer than the measurement.
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


# Rounds of turns, each with sessions of its own: where a session lies in memory changes how fast it is.


ROUNDS = 8
LEAST_ROUNDS = 4
"""Of fewer, the interval of their mean says little."""

OPENING = 2
"""The share of the time that opens sessions is at most 1 / 2, of more than the fewest rounds 1 / 4."""
KEPT = 10
"""If it is above 1 / 10, models are large: the sessions of one round alone are kept."""
LEAST_SECONDS = 1.0
"""For which sessions may be opened however few runs are asked for."""

OpenSessions = Callable[[Sequence[int]], Sequence[OpenedModel]]
"""Opens a session of each model, in the order of these indices, and returns them in the models' order."""


def take_rounds(
    open_sessions: OpenSessions,
    models: int,
    batches: Sequence[Batch],
    *,
    seconds: float = 10.0,
    runs: int | None = None,
    most_runs: int | None = None,
    progress: ProgressCallback = silent,
) -> Iterator[Turns]:
    """Let models take turns in several rounds, and yield the turns of each.

    Two sessions of one model differ, by half a percent on a quiet machine and by many on a busy one, however
    many turns they take. In each round the sessions are opened again, and another model's first; they are
    kept for a while, because in the memory that they give back the next would lie as they did. One round
    where there is one model; where four rounds of five turns do not fit into the time or the runs; and where
    opening the sessions would take more than half of the time, as large ones do.

    Args:
        open_sessions: opens a session of each model.
        models: how many there are.
        batches: are used one after the other, again and again.
        seconds: how long it may take in all, about.
        runs: how many runs of each session are counted in all, at least; instead of ``seconds``.
        most_runs: how many runs of each session are enough for one of several rounds.
        progress: is told after each turn.
    """
    require_length(seconds, runs)
    kept: list[Sequence[OpenedModel]] = []
    wanted, done, taken = 1, 0, 0
    while taken < wanted:
        begin = time.perf_counter()
        order = [(taken + offset) % models for offset in range(models)]
        sessions = open_sessions(order)
        opening = time.perf_counter() - begin
        if not taken:
            wanted = _fitting(sessions, batches[0], opening, seconds, runs)
        # Sessions of earlier rounds stay open where that costs little: a freed one would leave its memory
        # to the next, which would then lie in the same place.
        if KEPT * wanted * opening > seconds:
            kept.clear()
        kept.append(sessions)
        taken += 1
        told = _Told(progress, done, wanted)
        yield take_turns(
            sessions,
            batches,
            # Opening counts towards the time that the user gave, but never leaves less than half to
            # measure.
            seconds=seconds if wanted == 1 else max(seconds / wanted - opening, seconds / wanted / 2),
            runs=-(-runs // wanted) if runs is not None else None,
            most_runs=most_runs if wanted > 1 else None,
            progress=told,
        )
        done = told.done


def _fitting(
    sessions: Sequence[OpenedModel], batch: Batch, opening: float, seconds: float, runs: int | None
) -> int:
    """Return how many rounds fit; as many begin with one model as with another."""
    begin = time.perf_counter()
    for session in sessions:
        session.run(batch)
    each = time.perf_counter() - begin
    if runs is not None:
        seconds = max(runs * each, LEAST_SECONDS)
        fitting = runs // (LEAST_TURNS * RUNS_A_TURN)
    else:
        fitting = int(seconds / max(opening + (WARM_UP + 2 * LEAST_TURNS) * each, 1e-9))
    opened = int(seconds / max(OPENING * opening, 1e-9))
    rounds = min(ROUNDS, fitting, max(opened // 2, min(opened, LEAST_ROUNDS)))
    if rounds - rounds % len(sessions) >= LEAST_ROUNDS:
        # Each model is opened first equally often: the order changes where they lie in memory.
        rounds -= rounds % len(sessions)
    return rounds if rounds >= LEAST_ROUNDS and len(sessions) > 1 else 1


class _Told:
    """Tells progress on, with the samples of earlier rounds added."""

    def __init__(self, progress: ProgressCallback, before: int, rounds: int) -> None:
        self.done = before
        self._progress, self._before, self._rounds = progress, before, rounds

    def __call__(self, progress: Progress) -> None:
        self.done = self._before + progress.done
        if self.done == 0 or progress.done > 0:  # A later round is not a new stage.
            total = progress.total * self._rounds if progress.total is not None else None
            self._progress(Progress(progress.stage, self.done, total, progress.note))
