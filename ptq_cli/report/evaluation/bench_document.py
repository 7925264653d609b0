"""What ``ptq bench --json`` prints. Format version 2.

The dataclasses are the format: ``docs/bench.schema.json`` is generated from them. A change that adds or
changes a key must raise ``FORMAT_VERSION``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ptq_cli.core.decoding import AtLeast, encode
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.latency.operator_times import NodeTime, by_operator
from ptq_cli.report.evaluation.latency import LatencyComparison, LatencyRatio, ModelLatency
from ptq_cli.report.interval import Interval

FORMAT = "ptq.bench"
FORMAT_VERSION = 2
MICRO = 1e-6


@dataclass(frozen=True, kw_only=True)
class TimedInput:
    """An input of the models.

    Attributes:
        name: of the input.
        dtype: as numpy calls it.
        shape: that was run.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TimedRatio:
    """How long a model takes beside the first one, by the fast runs of each round.

    Attributes:
        value: geometric mean over the rounds; below 1 it is faster than the first.
        interval: 95 % interval of the value over the rounds; null of fewer than two turns.
        processor: the same of processor time.
        processor_interval: 95 % interval of that.
    """

    value: float
    interval: Interval | None
    processor: float
    processor_interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class TimedOperator:
    """What all nodes of one type take.

    Attributes:
        operator: the type.
        nodes: how many there are.
        seconds: of a run; 0 if the runtime merged all of them into others, or computed them before the run.
        share: of the run, 0 to 1.
    """

    operator: str
    nodes: Annotated[int, AtLeast(1)]
    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class TimedNode:
    """What a node takes.

    Attributes:
        name: of the node; may be empty.
        operator: its type.
        seconds: of a run; 0 if the runtime merged it into another node, or computed it before the run.
    """

    name: str
    operator: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TimedModel:
    """What the runs of one model took.

    Attributes:
        model: the file.
        runs: how many were counted.
        p50: seconds of a batch that half of the runs did not exceed.
        p90: seconds of a batch that 90 % of the runs did not exceed.
        p99: seconds of a batch that 99 % of the runs did not exceed.
        mean: seconds of a batch.
        processor: seconds of processor time of all threads for a batch, the mean.
        spread: p50 over what a tenth of the runs did not exceed; near 1 on a quiet machine.
        samples_per_second: of the mean.
        same_as_first: whether it is the first model, or one with the same graph and constants.
        ratio_to_first: null if it is the same.
        operators: what each type of operator takes, the slowest first; null without --profile.
        nodes: what each node takes, in the order of the graph; null without --profile.
    """

    model: str
    runs: Annotated[int, AtLeast(1)]
    p50: float
    p90: float
    p99: float
    mean: float
    processor: float
    spread: float
    samples_per_second: float
    same_as_first: bool
    ratio_to_first: TimedRatio | None
    operators: tuple[TimedOperator, ...] | None
    nodes: tuple[TimedNode, ...] | None


@dataclass(frozen=True, kw_only=True)
class TimedScenario:
    """All models with one batch size and number of threads.

    Attributes:
        batch: samples a run.
        threads: of one operator.
        runtime: what its makers call it, such as ``ONNX Runtime``.
        turns: how many there were.
        rounds: how often the models were opened again.
        inputs: what a run was given.
        notes: why the numbers may say little.
        models: in the order in which they were given.
    """

    batch: Annotated[int, AtLeast(1)]
    threads: Annotated[int, AtLeast(1)]
    runtime: str
    turns: Annotated[int, AtLeast(1)]
    rounds: Annotated[int, AtLeast(1)]
    inputs: tuple[TimedInput, ...]
    notes: tuple[str, ...]
    models: tuple[TimedModel, ...]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """How long models take.

    Attributes:
        data: whose samples they ran on, or that they were made up.
        data_faults: why data of the recipe were not used; empty if the first were.
        scenarios: each batch size with each number of threads and runtime.
    """

    data: str
    data_faults: tuple[str, ...]
    scenarios: tuple[TimedScenario, ...]


def bench_values(bench: Bench) -> dict[str, Any]:
    """Return the document that is printed."""
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **encode(bench)}


def timed_scenario(
    latency: LatencyComparison,
    models: Sequence[str],
    same_as_first: Sequence[bool],
    inputs: Sequence[TensorSpec],
    profiles: Sequence[Sequence[NodeTime]],
    notes: Sequence[str],
) -> TimedScenario:
    """Return one scenario of the document.

    Args:
        latency: what was measured.
        models: the files.
        same_as_first: whether each holds what the first one does.
        inputs: with all sizes known.
        profiles: the nodes of each model; empty without ``--profile``.
        notes: why the numbers may say little.
    """
    nodes: Sequence[Sequence[NodeTime] | None] = profiles or [None] * len(models)
    all_ratios = (None, *latency.ratios)
    ratios = [None if same else ratio for same, ratio in zip(same_as_first, all_ratios, strict=True)]
    return TimedScenario(
        batch=latency.batch,
        threads=latency.threads,
        runtime=latency.runtime,
        turns=latency.turns,
        rounds=latency.rounds,
        inputs=tuple(
            TimedInput(name=spec.name, dtype=str(spec.dtype), shape=tuple(size or 0 for size in spec.shape))
            for spec in inputs
        ),
        notes=tuple(notes),
        models=tuple(map(_timed_model, models, latency.models, ratios, same_as_first, nodes)),
    )


def _timed_model(
    name: str,
    found: ModelLatency,
    ratio: LatencyRatio | None,
    same_as_first: bool,
    nodes: Sequence[NodeTime] | None,
) -> TimedModel:
    return TimedModel(
        model=name,
        **vars(found),
        same_as_first=same_as_first,
        ratio_to_first=TimedRatio(**vars(ratio)) if ratio is not None else None,
        operators=None if nodes is None else tuple(_timed_operators(nodes)),
        nodes=None
        if nodes is None
        else tuple(
            TimedNode(name=node.name, operator=node.operator, seconds=MICRO * node.microseconds)
            for node in nodes
        ),
    )


def _timed_operators(nodes: Sequence[NodeTime]) -> list[TimedOperator]:
    return [
        TimedOperator(
            operator=item.operator, nodes=item.nodes, seconds=MICRO * item.microseconds, share=item.share
        )
        for item in by_operator(nodes)
    ]
