"""Turns of the models whose speeds a report compares, and the ratio of any two of them."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ptq_cli.models.stored import StoredModel
from ptq_cli.report.evaluation.latency import LatencyRatio, latency_ratio
from ptq_cli.runtime.rounds import take_rounds
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.turns import Batch, Turns, take_turns

SECONDS = 3.0
"""How long an evaluation measures at most, about, where nothing depends on the result."""
ENOUGH_RUNS = 90
"""Of each model, which small ones have done long before: 30 turns."""
LIMITED_SECONDS = 10.0
"""How long it measures if there is a limit on the latency."""


class LatencyTurns:
    """Models that took turns at the same inputs.

    Attributes:
        rounds: what each run took.

    Example:
        >>> clock = (((1.0,), (2.0,)), ((0.5,), (1.0,)))
        >>> found = LatencyTurns([Turns(clock, clock)])
        >>> found.ratio(1, 0).value, found.median_ms(1), found.turns
        (0.5, 750.0, 2)
    """

    def __init__(self, rounds: Sequence[Turns]) -> None:
        self.rounds = tuple(rounds)

    @property
    def turns(self) -> int:
        """How many there were."""
        return sum(len(turns.seconds[0]) for turns in self.rounds)

    def median_ms(self, model: int) -> float:
        """Return what the middle one of a model's runs took. Milliseconds."""
        return 1000 * median(run for turns in self.rounds for turn in turns.seconds[model] for run in turn)

    def ratio(self, model: int, other: int) -> LatencyRatio:
        """Return how long a model took beside another one."""
        pairs = [
            Turns(*((part[other], part[model]) for part in (turns.seconds, turns.processors)))
            for turns in self.rounds
        ]
        return latency_ratio(pairs, 1)


def take_latency_turns(
    models: Sequence[Path | StoredModel], inputs: Sequence[Batch], *, threads: int, limited: bool
) -> LatencyTurns:
    """Let models take turns: for as long as ``ptq bench`` does if a limit depends on it, otherwise briefly.

    Args:
        models: the float one first.
        inputs: batches by input name, of one size.
        threads: of one operator.
        limited: a limit depends on the result.

    Raises:
        RuntimeFailedError: a model cannot be loaded or run.
    """

    def open_sessions(order: Sequence[int]) -> list[Session]:
        opened = {index: Session(models[index], threads=threads) for index in order}
        return [opened[index] for index in range(len(models))]

    if limited:
        return LatencyTurns(list(take_rounds(open_sessions, len(models), inputs, seconds=LIMITED_SECONDS)))
    sessions = open_sessions(range(len(models)))
    return LatencyTurns([take_turns(sessions, inputs, seconds=SECONDS, most_runs=ENOUGH_RUNS)])
