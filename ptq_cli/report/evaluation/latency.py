"""How long models take, and how much longer one takes than another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.models.stored import StoredModel
from ptq_cli.report.intervals.interval import Interval
from ptq_cli.report.intervals.student import mean_interval
from ptq_cli.runtime.rounds import take_rounds
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.turns import Batch, Turns, batch_size

PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class ModelLatency:
    """What the runs of one model took.

    Attributes:
        runs: how many were counted.
        p50, p90, p99: seconds of a batch that so many percent of the runs did not exceed.
        mean: seconds of a batch.
        samples_per_second: of the mean.
    """

    runs: int
    p50: float
    p90: float
    p99: float
    mean: float
    samples_per_second: float


@dataclass(frozen=True)
class LatencyRatio:
    """How long a model takes beside the first one, turn by turn.

    Attributes:
        value: geometric mean over the turns; below 1 it is faster than the first.
        interval: of 95 %, by Student's t of the logarithms of the rounds, or of the turns of a single round;
            None of fewer than two turns.
        processor: the same of processor time, which other work on the machine changes less.
    """

    value: float
    interval: Interval | None
    processor: float

    @property
    def speed_up(self) -> float:
        """How many times as fast as the first it is."""
        return 1.0 / self.value


@dataclass(frozen=True, kw_only=True)
class LatencyComparison:
    """Latencies of models that took turns.

    Attributes:
        models: in the order given.
        ratios: of each model but the first to the first.
        turns: how many there were.
        rounds: how often the models were opened again.
        batch: samples a run.
        threads: of ONNX Runtime.
    """

    models: tuple[ModelLatency, ...]
    ratios: tuple[LatencyRatio, ...]
    turns: int
    rounds: int
    batch: int
    threads: int


def measure_latency(
    models: Sequence[bytes | Path | StoredModel],
    inputs: Sequence[Batch],
    *,
    threads: int,
    seconds: float = 10.0,
    runs: int | None = None,
    samples: int | None = None,
    progress: ProgressCallback = silent,
) -> LatencyComparison:
    """Let models take turns at the same inputs, and return their latencies and ratios.

    Args:
        models: one or several, serialized or as paths; the ratios are to the first.
        inputs: batches by input name, of one size; used one after the other.
        threads: of one operator, at least 1.
        seconds: about how long to measure.
        runs: how many runs of each model to count, instead of ``seconds``.
        samples: of a batch; None for the length of the inputs' first axis.
        progress: is called after each turn.

    Units:
        seconds; samples a second; ratios of seconds.

    Raises:
        RuntimeFailedError: a model cannot be loaded or run.
        RecipeValueError: ``seconds`` or ``runs`` makes no sense.

    Example:
        >>> from onnx import TensorProto, helper
        >>> x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 8]) for name in "xy")
        >>> graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negate", [x], [y])
        >>> model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        >>> batch = {"x": np.ones((4, 8), np.float32)}
        >>> found = measure_latency([model.SerializeToString()] * 2, [batch], threads=1, runs=9)
        >>> found.models[0].runs >= 9, found.batch, len(found.ratios)
        (True, 4, 1)
    """

    def open_sessions(order: Sequence[int]) -> list[Session]:
        opened = {index: Session(models[index], threads=threads) for index in order}
        return [opened[index] for index in range(len(models))]

    rounds = take_rounds(open_sessions, len(models), inputs, seconds=seconds, runs=runs, progress=progress)
    batch = samples or batch_size(inputs[0])
    return LatencyComparison(
        models=tuple(_summarize(rounds, index, batch) for index in range(len(models))),
        ratios=tuple(latency_ratio(rounds, index) for index in range(1, len(models))),
        turns=sum(len(turns.seconds[0]) for turns in rounds),
        rounds=len(rounds),
        batch=batch,
        threads=threads,
    )


def latency_ratio(rounds: Sequence[Turns], model: int) -> LatencyRatio:
    """Return how long a model took beside the first.

    A turn's ratio is that of the middle runs, a round's the geometric mean of its turns', which is the same
    whichever model is above. The interval is of the rounds, so that it holds what opening the models again
    changes; of a single round it is of the turns, and holds what the machine did between them alone. Of long
    runs there are few turns, of which the bootstrap's interval would be too narrow.

    Args:
        rounds: each of two models or more.
        model: which one stands above.

    Source:
        Fleming and Wallace 1986, "How not to lie with statistics: the correct way to summarize benchmark
        results", for the geometric mean; Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time",
        for the interval of the outermost repetitions.

    Example:
        >>> clock = (((1.0,), (2.0,)), ((0.5,), (1.0,)))
        >>> latency_ratio([Turns(clock, clock)], 1).value
        0.5
    """
    logs = [np.log(np.divide(turns.medians(model), turns.medians(0))) for turns in rounds]
    means = np.array([turns.mean() for turns in logs])
    found = mean_interval(means if len(rounds) > 1 else logs[0])
    return LatencyRatio(
        float(np.exp(means.mean())),
        replace(found, low=float(np.exp(found.low)), high=float(np.exp(found.high))) if found else None,
        float(np.exp(np.mean([_processor_log(turns, model) for turns in rounds]))),
    )


def _processor_log(turns: Turns, model: int) -> float:
    tiny = np.finfo(np.float64).tiny
    above, below = (np.maximum(turns.processor_medians(index), tiny) for index in (model, 0))
    return float(np.log(above / below).mean())


def _summarize(rounds: Sequence[Turns], model: int, batch: int) -> ModelLatency:
    seconds = np.array([run for turns in rounds for turn in turns.seconds[model] for run in turn])
    p50, p90, p99 = (float(value) for value in np.percentile(seconds, PERCENTILES))
    mean = float(seconds.mean())
    return ModelLatency(
        runs=len(seconds), p50=p50, p90=p90, p99=p99, mean=mean, samples_per_second=batch / mean
    )
