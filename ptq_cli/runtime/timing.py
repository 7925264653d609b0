"""Times of runs of several models, interleaved so that a machine that drifts favors none of them.

Models take turns, and in several rounds their sessions are opened again: where a session lies in memory
changes how fast it is.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.runtime.engine import OpenedModel

Inputs = Mapping[str, Array]
RunsOfTurns = tuple[tuple[float, ...], ...]  # seconds of one model's runs, by turn
# Opens a session of each model, in the order of these indices, and returns them in the models' order.
OpenSessions = Callable[[Sequence[int]], Sequence[OpenedModel]]
RUNS_A_TURN = 3  # their median leaves out one that something else held up
TURNS = 20  # where fewer fit into the time, a turn has one run
LEAST_TURNS = 5
_SHORT = 0.05  # seconds; a shorter run is slower on caches that another model has just emptied
WARM_UP = 3
LONG_WARM_UP = 0.5  # seconds after which a session is warm, however few runs that were
ROUNDS = 8
LEAST_ROUNDS = 4  # of fewer, the interval of their mean says little
OPENING = 2  # opening takes at most 1 / 2 of the time, or 1 / 4 of that of more than the fewest rounds
_KEPT = 10  # where it takes more than 1 / 10, models are large: sessions of one round alone are kept
_LEAST_SECONDS = 1.0  # for which sessions may be opened, however few runs are asked for


@dataclass(frozen=True)
class Duration:
    """Length of a measurement: about so many ``seconds``, or at least so many ``runs`` of each model instead.

    ``most_runs`` of each model are enough, where ``seconds`` would allow more.
    """

    seconds: float = 10.0
    runs: int | None = None
    most_runs: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise RecipeValueError(f"seconds must be above 0, got {self.seconds:g}", hint="10 is usual")
        if self.runs is not None and self.runs < 1:
            raise RecipeValueError(f"runs must be at least 1, got {self.runs}", hint="100 is usual")


DEFAULT_DURATION = Duration()


@dataclass(frozen=True)
class Turns:
    """Times of runs.

    Attributes:
        seconds: by the clock; by model, then by turn, then by run.
        processors: seconds of processor time of all threads, in the same order.
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
        ends = pairwise(turns * index // count for index in range(count + 1))
        both = (self.seconds, self.processors)
        return [Turns(*(tuple(model[begin:end] for model in times) for times in both)) for begin, end in ends]


def time_interleaved(
    sessions: Sequence[OpenedModel],
    batches: Sequence[Inputs],
    duration: Duration = DEFAULT_DURATION,
    progress: ProgressCallback = silent,
) -> Turns:
    """Run sessions in turns, and return what each run took.

    A turn is a few runs of each session, one session after the other, on one batch; the next turn begins with
    the next session and takes the next batch. Before the first turn each is warmed up. Where a run is short,
    the first of a session's runs in a turn is not counted. There are always five turns.
    """
    seconds, runs = duration.seconds, duration.runs
    progress(Progress("measuring", 0, None))
    longest = [_warm_up(session, batches) for session in sessions]
    fitting = runs / RUNS_A_TURN if runs is not None else seconds / (sum(longest) * (RUNS_A_TURN + 1))
    # Runs in a row keep the caches warm, as in use; for slow models more turns matter more.
    counted = RUNS_A_TURN if fitting >= TURNS else 1
    # The other model has just taken the caches: one run that is not counted brings a short one's back.
    settles = [len(sessions) > 1 and one < _SHORT for one in longest]
    wanted = -(-runs // counted) if runs is not None else None
    enough = float("inf") if duration.most_runs is None else duration.most_runs / counted
    clocks: list[list[tuple[float, ...]]] = [[] for _ in sessions]
    processors: list[list[tuple[float, ...]]] = [[] for _ in sessions]
    end, turn = time.perf_counter() + seconds, 0

    def goes_on() -> bool:
        if wanted is not None:
            return turn < wanted
        return turn < LEAST_TURNS or (turn < enough and time.perf_counter() < end)

    while goes_on():
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
        progress(Progress("measuring", done, done // turn * wanted if wanted is not None else None))
    return Turns(tuple(map(tuple, clocks)), tuple(map(tuple, processors)))


def batch_size(inputs: Inputs) -> int:
    """Return how many samples a batch has: the length of the first axis; 1 where inputs differ in it."""
    sizes = {array.shape[0] for array in inputs.values() if array.ndim}
    return sizes.pop() if len(sizes) == 1 else 1


def _warm_up(session: OpenedModel, batches: Sequence[Inputs]) -> float:
    """Run a session a few times, and return the seconds of the last run."""
    begin, last = time.perf_counter(), 0.0
    for index in range(WARM_UP):
        (last, *_), _ = _timed(session, batches[index % len(batches)], 1)
        # A large model is warm after one run, and three would take longer than the measurement.
        if time.perf_counter() - begin > LONG_WARM_UP:
            break
    return last


def _timed(session: OpenedModel, batch: Inputs, runs: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    clocks, processors = [], []
    for _ in range(runs):
        processor, clock = time.process_time(), time.perf_counter()
        session.run(batch)
        clocks.append(time.perf_counter() - clock)
        processors.append(time.process_time() - processor)
    return tuple(clocks), tuple(processors)


def repeat_with_new_sessions(
    open_sessions: OpenSessions,
    models: int,
    batches: Sequence[Inputs],
    duration: Duration = DEFAULT_DURATION,
    progress: ProgressCallback = silent,
) -> Iterator[Turns]:
    """Yield the turns of several rounds, each with new sessions.

    Two sessions of one model differ, by half a percent on a quiet machine and by many on a busy one, however
    many turns they take. In each round the sessions are opened again, and another model's first. One round
    where there is one model; where four rounds of five turns do not fit into the time or the runs; and where
    opening the sessions would take more than half of the time, as large ones do. ``duration`` is that of all
    rounds; its ``most_runs`` are of one of several rounds.
    """
    seconds, runs = duration.seconds, duration.runs
    kept: list[Sequence[OpenedModel]] = []
    wanted, done, taken = 1, 0, 0
    while taken < wanted:
        begin = time.perf_counter()
        sessions = open_sessions([(taken + offset) % models for offset in range(models)])
        opening = time.perf_counter() - begin
        if not taken:
            wanted = _rounds_that_fit(sessions, batches[0], opening, duration)
        # Sessions of earlier rounds stay open where that costs little: a freed one would leave its memory
        # to the next, which would then lie in the same place.
        if _KEPT * wanted * opening > seconds:
            kept.clear()
        kept.append(sessions)
        taken += 1
        told = _AllRounds(progress, done, wanted)
        # Opening counts towards the time that the user gave, but never leaves less than half to measure.
        each = seconds if wanted == 1 else max(seconds / wanted - opening, seconds / wanted / 2)
        most = duration.most_runs if wanted > 1 else None
        part = Duration(each, -(-runs // wanted) if runs is not None else None, most)
        yield time_interleaved(sessions, batches, part, told)
        done = told.done


def _rounds_that_fit(
    sessions: Sequence[OpenedModel], batch: Inputs, opening: float, duration: Duration
) -> int:
    """Return how many rounds fit, given the seconds of opening; each model is the first equally often."""
    begin = time.perf_counter()
    for session in sessions:
        session.run(batch)
    each, seconds = time.perf_counter() - begin, duration.seconds
    if duration.runs is not None:
        seconds = max(duration.runs * each, _LEAST_SECONDS)
        fitting = duration.runs // (LEAST_TURNS * RUNS_A_TURN)
    else:
        fitting = int(seconds / max(opening + (WARM_UP + 2 * LEAST_TURNS) * each, 1e-9))
    opened = int(seconds / max(OPENING * opening, 1e-9))
    rounds = min(ROUNDS, fitting, max(opened // 2, min(opened, LEAST_ROUNDS)))
    if rounds - rounds % len(sessions) >= LEAST_ROUNDS:
        # Each model is opened first equally often: the order changes where they lie in memory.
        rounds -= rounds % len(sessions)
    return rounds if rounds >= LEAST_ROUNDS and len(sessions) > 1 else 1


class _AllRounds:
    """Progress of one round, with the samples of earlier rounds added."""

    def __init__(self, progress: ProgressCallback, before: int, rounds: int) -> None:
        self.done = before
        self._progress, self._before, self._rounds = progress, before, rounds

    def __call__(self, progress: Progress) -> None:
        self.done = self._before + progress.done
        if self.done == 0 or progress.done > 0:  # A later round is not a new stage.
            total = progress.total * self._rounds if progress.total is not None else None
            self._progress(Progress(progress.stage, self.done, total, progress.note))
