"""Latencies of models that take turns, and the ratio of any two of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np

from ptq_cli.core.memory import SHORTEST_RUN
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.evaluation.bootstrap import mean_interval
from ptq_cli.evaluation.document.gate_result import latency_verdict
from ptq_cli.evaluation.interval import Interval
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.runtime.engine import Engine, OpenedModel
from ptq_cli.runtime.engine_registry import ONNX_RUNTIME
from ptq_cli.runtime.timing import (
    LEAST_ROUNDS,
    ROUNDS,
    Duration,
    Inputs,
    OpenSessions,
    RunsOfTurns,
    Turns,
    batch_size,
    repeat_with_new_sessions,
)

_PERCENTILES = (50.0, 90.0, 99.0)
_FAST = 10.0  # the percentile of a fast run: other work on the machine only ever adds time


@dataclass(frozen=True, kw_only=True)
class ModelLatency:
    """What the runs of one model took."""

    runs: Annotated[int, "How many were counted."]
    p50: Annotated[float, "Seconds of a batch that half of the runs did not exceed."]
    p90: Annotated[float, "Seconds of a batch that 90 % of the runs did not exceed."]
    p99: Annotated[float, "Seconds of a batch that 99 % of the runs did not exceed."]
    mean: Annotated[float, "Seconds of a batch."]
    processor: Annotated[float, "Seconds of processor time of all threads for a batch, the mean."]
    spread: Annotated[float, "P50 over what a tenth of the runs did not exceed."]
    samples_per_second: Annotated[float, "Of the mean."]


@dataclass(frozen=True)
class LatencyRatio:
    """How long a model takes beside the first one, by the fast runs of each round."""

    value: Annotated[float, "Geometric mean over the rounds; below 1 it is faster than the first."]
    interval: Annotated[
        Interval | None,
        "Of 95 %, by Student's t of the logarithms of the rounds, or of parts of a single round; None of "
        "fewer than two turns.",
    ]
    processor: Annotated[float, "The same of processor time, which other work on the machine changes less."]
    processor_interval: Annotated[Interval | None, "Of that."]

    @property
    def speed_up(self) -> float:
        """How many times as fast as the first it is."""
        return 1.0 / self.value


@dataclass(frozen=True)
class Scenario:
    """What models are run with."""

    inputs: Sequence[Inputs]
    threads: int
    samples: int | None = None
    engine: Engine = ONNX_RUNTIME


@dataclass(frozen=True, kw_only=True)
class LatencyComparison:
    """Latencies of models that took turns."""

    models: Annotated[tuple[ModelLatency, ...], "In the order given."]
    ratios: Annotated[tuple[LatencyRatio, ...], "Of each model but the first to the first."]
    turns: Annotated[int, "How many there were."]
    rounds: Annotated[int, "How often the models were opened again."]
    batch: Annotated[int, "Samples a run."]
    threads: Annotated[int, "Of one operator."]
    runtime: Annotated[str, "What its makers call it."] = ONNX_RUNTIME.title


def measure_latencies(
    models: Sequence[bytes | Path | StoredModel],
    scenarios: Sequence[Scenario],
    *,
    seconds: float = 10.0,
    runs: int | None = None,
    progress: ProgressCallback = silent,
    stage: str = "measuring",
) -> list[LatencyComparison]:
    """Let models take turns in several scenarios, whose rounds take turns as well.

    Each scenario takes about ``seconds``, or as many ``runs`` of each model as are given.
    """
    told, duration = _Sum(progress, len(scenarios), stage), Duration(seconds, runs)
    waiting = {
        index: repeat_with_new_sessions(
            opener(models, scenario), len(models), scenario.inputs, duration, told.part(index)
        )
        for index, scenario in enumerate(scenarios)
    }
    found: list[list[Turns]] = [[] for _ in scenarios]
    while waiting:
        for index in list(waiting):
            turns = next(waiting[index], None)
            if turns is None:
                del waiting[index]
            else:
                found[index].append(turns)
    return [_compared(rounds, scenario) for rounds, scenario in zip(found, scenarios, strict=True)]


def opener(models: Sequence[bytes | Path | StoredModel], scenario: Scenario) -> OpenSessions:
    """Function that opens models for a scenario, each ready for its next run."""

    def open_sessions(order: Sequence[int]) -> list[OpenedModel]:
        opened = {index: scenario.engine.open(models[index], threads=scenario.threads) for index in order}
        for model in opened.values():
            model.run(scenario.inputs[0])  # Some runtimes compile a model for the shapes that it meets.
        return [opened[index] for index in range(len(models))]

    return open_sessions


def _compared(rounds: Sequence[Turns], scenario: Scenario) -> LatencyComparison:
    models, batch = range(len(rounds[0].seconds)), scenario.samples or batch_size(scenario.inputs[0])
    return LatencyComparison(
        models=tuple(_summarize(rounds, index, batch) for index in models),
        ratios=tuple(latency_ratio(rounds, index) for index in models[1:]),
        turns=sum(len(turns.seconds[0]) for turns in rounds),
        rounds=len(rounds),
        batch=batch,
        threads=scenario.threads,
        runtime=scenario.engine.title,
    )


class _Sum:
    """Tells progress on, with the samples of all scenarios added up; how many there will be is not known."""

    def __init__(self, progress: ProgressCallback, parts: int, stage: str) -> None:
        self._progress, self._done, self._stage, self._begun = progress, [0] * parts, stage, False

    def part(self, index: int) -> ProgressCallback:
        def told(progress: Progress) -> None:
            self._done[index] = progress.done
            if progress.done or not self._begun:
                total = progress.total if len(self._done) == 1 else None
                self._progress(Progress(self._stage, sum(self._done), total, progress.note))
            self._begun = True

        return told


def latency_ratio(rounds: Sequence[Turns], model: int) -> LatencyRatio:
    """Time of a model over the first one's.

    A round's ratio is that of the times that a tenth of each model's runs did not exceed: other work on the
    machine makes runs longer, those of one model more than those of another, and five measurements of two
    models by their middle runs had ratios from 0.97 to 1.40. The value is the geometric mean, which is the
    same whichever model is above. The interval is of the rounds, so that it holds what opening the models
    again changes; of a single round it is of parts of it, and holds what the machine did between them alone.
    Of few rounds the bootstrap's interval would be too narrow.

    Args:
        rounds: each of two models or more.
        model: which one stands above.

    Source: Fleming and Wallace 1986, "How not to lie with statistics: the correct way to summarize benchmark
    results", for the geometric mean; Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", for
    the interval of the outermost repetitions.

    Example:
        >>> clock = (((1.0,), (2.0,)), ((0.5,), (1.0,)))
        >>> latency_ratio([Turns(clock, clock)], 1).value
        0.5
    """
    parts = rounds if len(rounds) > 1 else rounds[0].parts(ROUNDS)
    return LatencyRatio(
        *_mean_ratio([(turns.seconds[0], turns.seconds[model]) for turns in parts]),
        *_mean_ratio([(turns.processors[0], turns.processors[model]) for turns in parts]),
    )


def _mean_ratio(parts: Sequence[tuple[RunsOfTurns, RunsOfTurns]]) -> tuple[float, Interval | None]:
    logs = np.array([np.log(_fast(above) / _fast(below)) for below, above in parts])
    found = mean_interval(logs)
    interval = replace(found, low=float(np.exp(found.low)), high=float(np.exp(found.high))) if found else None
    return float(np.exp(logs.mean())), interval


def _fast(turns: RunsOfTurns) -> float:
    """Time that a tenth of the runs did not exceed; a processor's clock may read 0."""
    found = np.percentile([run for runs in turns for run in runs], _FAST)
    return max(float(found), float(np.finfo(np.float64).tiny))


def _summarize(rounds: Sequence[Turns], model: int, batch: int) -> ModelLatency:
    seconds = np.array([run for turns in rounds for turn in turns.seconds[model] for run in turn])
    work = [run for turns in rounds for turn in turns.processors[model] for run in turn]
    fast, p50, p90, p99 = (float(value) for value in np.percentile(seconds, (_FAST, *_PERCENTILES)))
    mean = float(seconds.mean())
    return ModelLatency(
        runs=len(seconds),
        p50=p50,
        p90=p90,
        p99=p99,
        mean=mean,
        processor=float(np.mean(work)),
        spread=p50 / fast,
        samples_per_second=batch / mean,
    )


_SECONDS = 3.0  # how long an evaluation measures at most, about, where nothing depends on the result
# Runs of each model in one of several rounds, eight turns: small models have done them long before.
ENOUGH_RUNS = 24
LIMITED_SECONDS = 10.0  # how long it measures if there is a limit on the latency


class LatencyTurns:
    """Models that took turns at the same inputs.

    The processor time of a single thread is what it takes on a quiet machine; of several threads only the
    clock tells how long a run takes.

    Attributes:
        rounds: what each run took, by the clock, or in processor time if there is one thread.
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
        """Median of a model's runs. Milliseconds."""
        return 1000 * median(run for turns in self.rounds for turn in turns.seconds[model] for run in turn)

    def ratio(self, model: int, other: int) -> LatencyRatio:
        """Time of a model over another one's."""
        pairs = [
            Turns(*((part[other], part[model]) for part in (turns.seconds, turns.processors)))
            for turns in self.rounds
        ]
        return latency_ratio(pairs, 1)


def take_latency_turns(
    models: Sequence[Path | StoredModel],
    inputs: Sequence[Inputs],
    *,
    threads: int,
    limited: bool,
    engine: Engine = ONNX_RUNTIME,
) -> LatencyTurns:
    """Let models take turns: for as long as ``ptq bench`` does if a limit depends on it, otherwise briefly.

    Edge case: Where the machine is too busy to tell, they take more rounds, for as long as ``_SECONDS`` says.
    """
    rounds: list[Turns] = []
    for turns in repeat_with_new_sessions(
        opener(models, Scenario(inputs, threads, engine=engine)),
        len(models),
        inputs,
        Duration(LIMITED_SECONDS) if limited else Duration(_SECONDS, most_runs=ENOUGH_RUNS),
    ):
        rounds.append(turns)
        each_was_first = len(rounds) >= LEAST_ROUNDS and len(rounds) % len(models) == 0
        if not limited and each_was_first and not LatencyTurns(rounds, threads=threads).is_unclear:
            break
    return LatencyTurns(rounds, threads=threads)
