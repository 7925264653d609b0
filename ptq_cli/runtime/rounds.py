"""Rounds of turns, each with sessions of its own: where a session lies in memory changes how fast it is."""

import time
from collections.abc import Callable, Iterator, Sequence

from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.runtime.engines.engine import OpenedModel
from ptq_cli.runtime.turns import RUNS_A_TURN, TURNS, Batch, Turns, require_length, take_turns

ROUNDS = 8
LEAST_ROUNDS = 4
"""Of fewer, the interval of their mean says little."""

OPENING = 10
"""The share of the time that goes into opening sessions is at most 1 / 10; it bounds what is kept, too."""

OpenSessions = Callable[[Sequence[int]], Sequence[OpenedModel]]
"""Opens a session of each model, in the order of these indices, and returns them in the models' order."""


def take_rounds(
    open_sessions: OpenSessions,
    models: int,
    batches: Sequence[Batch],
    *,
    seconds: float = 10.0,
    runs: int | None = None,
    progress: ProgressCallback = silent,
) -> Iterator[Turns]:
    """Let models take turns in several rounds, and yield the turns of each.

    Two sessions of one small model differ by about half a percent, however many turns there are. In each
    round the sessions are opened again, and another model's first; all are kept until the end, because in the
    memory that they give back the next would lie as they did.

    Args:
        open_sessions: opens a session of each model.
        models: how many there are.
        batches: are used one after the other, again and again.
        seconds: how long it may take in all, about.
        runs: how many runs of each session are counted in all, at least; instead of ``seconds``.
        progress: is told after each turn.

    Edge case:
        One round where there is one model; where several of 20 turns do not fit into the time or the runs;
        and where opening the sessions would take more than a tenth of the time, as large ones do.

    Raises:
        RecipeValueError: ``seconds`` is not above 0, or ``runs`` below 1.
        RuntimeFailedError: the runtime failed.
    """
    require_length(seconds, runs)
    kept: list[Sequence[OpenedModel]] = []
    wanted, done = 1, 0
    while len(kept) < wanted:
        begin = time.perf_counter()
        order = [(len(kept) + offset) % models for offset in range(models)]
        sessions = open_sessions(order)
        opening = time.perf_counter() - begin
        if not kept:
            wanted = _fitting(sessions, batches[0], opening, seconds, runs)
        kept.append(sessions)
        told = _Told(progress, done, wanted)
        yield take_turns(
            sessions,
            batches,
            seconds=seconds if wanted == 1 else max(seconds / wanted - opening, seconds / wanted / 2),
            runs=-(-runs // wanted) if runs is not None else None,
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
        seconds = runs * each
        fitting = runs // (TURNS * RUNS_A_TURN)
    else:
        fitting = int(seconds / max(opening + TURNS * (RUNS_A_TURN + 1) * each, 1e-9))
    fitting = min(fitting, int(seconds / max(OPENING * opening, 1e-9)))
    rounds = min(ROUNDS, fitting)
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
