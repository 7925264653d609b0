"""Rounds of turns, each with sessions of its own: where a session lies in memory changes how fast it is."""

import time
from collections.abc import Callable, Iterator, Sequence

from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.runtime.engines.engine import OpenedModel
from ptq_cli.runtime.turns import LEAST_TURNS, RUNS_A_TURN, WARM_UP, Batch, Turns, require_length, take_turns

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
    kept for a while, because in the memory that they give back the next would lie as they did.

    Args:
        open_sessions: opens a session of each model.
        models: how many there are.
        batches: are used one after the other, again and again.
        seconds: how long it may take in all, about.
        runs: how many runs of each session are counted in all, at least; instead of ``seconds``.
        most_runs: how many runs of each session are enough for one of several rounds.
        progress: is told after each turn.

    Edge case:
        One round where there is one model; where four rounds of five turns do not fit into the time or the
        runs; and where opening the sessions would take more than half of the time, as large ones do.

    Raises:
        RecipeValueError: ``seconds`` is not above 0, or ``runs`` below 1.
        RuntimeFailedError: the runtime failed.
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
        if KEPT * wanted * opening > seconds:
            kept.clear()
        kept.append(sessions)
        taken += 1
        told = _Told(progress, done, wanted)
        yield take_turns(
            sessions,
            batches,
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
