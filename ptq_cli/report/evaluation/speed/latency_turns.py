"""Turns of the models whose speeds a report compares, and the ratio of any two of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ptq_cli.core.telling_times import SHORTEST_RUN
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.report.document.times import latency_verdict
from ptq_cli.report.evaluation.speed.latency import LatencyRatio, Scenario, latency_ratio, opener
from ptq_cli.runtime.engines.engine import Engine
from ptq_cli.runtime.engines.onnxruntime_engine import ONNX_RUNTIME
from ptq_cli.runtime.rounds import LEAST_ROUNDS, take_rounds
from ptq_cli.runtime.turns import Batch, Turns

SECONDS = 3.0
"""How long an evaluation measures at most, about, where nothing depends on the result."""
ENOUGH_RUNS = 24
"""Of each model in one of several rounds, which small ones have done long before: eight turns."""
LIMITED_SECONDS = 10.0
"""How long it measures if there is a limit on the latency."""


class LatencyTurns:
    """Models that took turns at the same inputs.

    The processor time of a single thread is what it takes on a quiet machine; of several threads only the
    clock tells how long a run takes.

    Attributes:
        rounds: what each run took, by the clock, or in processor time if there is one thread.

    Example:
        >>> clock = (((1.0,), (2.0,)), ((0.5,), (1.0,)))
        >>> found = LatencyTurns([Turns(clock, clock)], threads=2)
        >>> found.ratio(1, 0).value, found.median_ms(1), found.turns
        (0.5, 750.0, 2)
    """

    def __init__(self, rounds: Sequence[Turns], *, threads: int) -> None:
        self.rounds = tuple(
            replace(turns, seconds=turns.processors) if threads == 1 else turns for turns in rounds
        )

    @property
    def turns(self) -> int:
        """How many there were."""
        return sum(len(turns.seconds[0]) for turns in self.rounds)

    @property
    def is_unclear(self) -> bool:
        """Whether more turns could tell which of the first and another model is faster."""
        models = range(1, len(self.rounds[0].seconds))
        is_long = all(self.median_ms(model) >= SHORTEST_RUN * 1e3 for model in (0, *models))
        return is_long and any(latency_verdict(self.ratio(model, 0).interval) == "busy" for model in models)

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
    models: Sequence[Path | StoredModel],
    inputs: Sequence[Batch],
    *,
    threads: int,
    limited: bool,
    engine: Engine = ONNX_RUNTIME,
) -> LatencyTurns:
    """Let models take turns: for as long as ``ptq bench`` does if a limit depends on it, otherwise briefly.

    Edge case:
        Where the machine is too busy to tell, they take more rounds, for as long as ``SECONDS`` says.

    Args:
        models: the float one first.
        inputs: batches by input name, of one size.
        threads: of one operator.
        limited: a limit depends on the result.
        engine: the runtime.

    Raises:
        RuntimeFailedError: a model cannot be loaded or run.
    """
    rounds: list[Turns] = []
    for turns in take_rounds(
        opener(models, Scenario(inputs, threads, engine=engine)),
        len(models),
        inputs,
        seconds=LIMITED_SECONDS if limited else SECONDS,
        most_runs=None if limited else ENOUGH_RUNS,
    ):
        rounds.append(turns)
        each_was_first = len(rounds) >= LEAST_ROUNDS and len(rounds) % len(models) == 0
        if not limited and each_was_first and not LatencyTurns(rounds, threads=threads).is_unclear:
            break
    return LatencyTurns(rounds, threads=threads)
