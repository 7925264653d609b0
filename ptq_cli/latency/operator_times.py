"""The time of a model's run and of each of its nodes and types of operator, where other work is done, too."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, thread_time
from typing import Annotated

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.runtime.engine import MARK, marked_graph
from ptq_cli.runtime.session import Session, Written

_FAST = 0.1  # the quantile of the runs that counts: other work on the machine only ever adds time
FEWEST_RUNS, MOST_RUNS = 8, 200
# The first of them finds the caches full of another model, and is not among the fast ones.
PROFILED_RUNS_A_TURN = 4
# Seconds of a run that the caches matter little for. A turn has one of them, and four turns are enough.
LONG = 0.05
FEWEST_LONG_RUNS = 4


@dataclass(frozen=True)
class WholeRuns:
    """How long runs of a whole model take."""

    fast: float
    spread: float


def fast_runs(
    models: Sequence[StoredModel], batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> list[WholeRuns]:
    """How long a run of each model takes, in turns."""
    sessions = [Session(model, threads=threads) for model in models]
    times = take_clocks(sessions, batches, threads=threads, seconds=seconds)
    return [whole_runs(runs) for runs in times]


def take_clocks(
    sessions: Sequence[Session], batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> list[list[float]]:
    """Let sessions take turns, and return the microseconds of each run of each.

    That is processor time of one thread, which leaves out what other processes do, and time by the clock of
    several.
    """
    clock = thread_time if threads == 1 else perf_counter
    times: list[list[float]] = [[] for _ in sessions]
    began = perf_counter()
    for session in sessions:
        session.run(batches[0])  # It allocates, and is not counted.
    is_long = perf_counter() - began > LONG * len(sessions)
    runs, fewest = (1, FEWEST_LONG_RUNS) if is_long else (PROFILED_RUNS_A_TURN, FEWEST_RUNS)
    began, count = perf_counter(), 0
    while count < fewest or (perf_counter() - began < seconds and count < MOST_RUNS):
        for session, found in zip(sessions, times, strict=True):
            for run in range(runs):
                start = clock()
                session.run(batches[(count + run) % len(batches)])
                found.append((clock() - start) * 1e6)
        count += runs
    return times


def whole_runs(times: Sequence[float]) -> WholeRuns:
    """Fast and spread of some run times.

    Example:
        >>> whole_runs([20.0] * 9 + [10.0])
        WholeRuns(fast=19.0, spread=1.0526315789473684)
    """
    fast, middle = np.quantile(times, (_FAST, 0.5))
    return WholeRuns(float(fast), float(middle / fast))


_SUFFIX = "_kernel_time"
REORDERS = "Reorder"
MOST_MERGED = 16  # nodes in one kernel, about


@dataclass(frozen=True)
class OperatorTimes:
    """What the operators of a model take.

    Attributes:
        by_node: microseconds by the name of a node of the graph that was given; 0 for one that ONNX Runtime
            merged into another.
        total: microseconds of a fast run of the whole model, without profiling.
        spread: the median run's time over that.
    """

    by_node: Mapping[str, float]
    total: float
    spread: float

    @property
    def scale(self) -> float:
        """What a microsecond of a profiled operator is in a run without profiling."""
        return self.total / max(sum(self.by_node.values()), 1e-9)


@dataclass(frozen=True)
class NodeTime:
    """What a node of a graph takes."""

    name: Annotated[str, "Of the node; may be empty."]
    operator: Annotated[str, "Its type."]
    microseconds: Annotated[
        float,
        "Of a profiled run; 0 if ONNX Runtime merged it into another node, or computed it before the run.",
    ]


def operator_times(
    models: Sequence[ir.Model], batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> list[OperatorTimes]:
    """Profile models in turns, and return of each the time of each node, and of a run without profiling.

    They take turns so that other work on the machine, which comes and goes, slows none of them alone.
    """
    stored = [serialize(marked_graph(model)) for model in models]
    with tempfile.TemporaryDirectory() as folder:
        whole = [Session(item, threads=threads) for item in stored]
        profiled = [
            ProfiledSession(model, item, threads, Path(folder) / str(index))
            for index, (model, item) in enumerate(zip(models, stored, strict=True))
        ]
        opened = [
            part for pair in zip(whole, (item.session for item in profiled), strict=True) for part in pair
        ]
        times = take_clocks(opened, batches, threads=threads, seconds=seconds)
        found = []
        for item, runs in zip(profiled, (whole_runs(runs) for runs in times[::2]), strict=True):
            by_node = {node.name: node.microseconds for node in item.end()}
            found.append(OperatorTimes(by_node, runs.fast, runs.spread))
    return found


def node_times(
    model: ir.Model, batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> tuple[NodeTime, ...]:
    """Profile a model, and return the time of each node of its graph, in the graph's order.

    A node with graphs inside, such as Loop, has their time.
    """
    with tempfile.TemporaryDirectory() as folder:
        profiled = ProfiledSession(model, serialize(marked_graph(model)), threads, Path(folder))
        take_clocks([profiled.session], batches, threads=threads, seconds=seconds)
        return profiled.end()


class ProfiledSession:
    """A session whose kernels are timed."""

    def __init__(self, model: ir.Model, stored: StoredModel, threads: int, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._nodes, self._optimized = tuple(model.graph), folder / "optimized.onnx"
        writes = Written(self._optimized, times=folder / "profile")
        self.session = Session(stored, threads=threads, writes=writes)

    def end(self) -> tuple[NodeTime, ...]:
        """The time of each node of the graph, in the graph's order, from all runs so far."""
        events = json.loads(Path(self.session.end_profile()).read_text(encoding="utf-8"))
        optimized = onnx.load(self._optimized, load_external_data=False)
        kernels, times = _kernel_times(events), [0.0] * len(self._nodes)
        for kernel, index in _origins(optimized.graph, self._nodes).items():
            times[index] += kernels.get(kernel, 0.0)
        return tuple(
            NodeTime(node.name or "", node.op_type, time)
            for node, time in zip(self._nodes, times, strict=True)
        )


def _kernel_times(events: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """The microseconds of each kernel, from ONNX Runtime's profile."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            times[name.removesuffix(_SUFFIX)].append(float(event["dur"]))  # type: ignore[arg-type]
    return {name: float(np.quantile(found, _FAST)) for name, found in times.items()}


def _origins(graph: onnx.GraphProto, nodes: Sequence[ir.Node]) -> dict[str, int]:
    """Which node each kernel belongs to, by its name; what only reorders belongs to what it reads."""
    positions = {node: index for index, node in enumerate(nodes)}
    made_by: dict[str, int] = {}
    found: dict[str, int] = {}
    waiting = []
    for kernel in graph.node:
        sources = [made_by[name] for name in kernel.input if name in made_by]
        marks = [int(mark.group(1)) for name in (kernel.name, *kernel.output) if (mark := MARK.match(name))]
        index = positions[_main_node(kernel.op_type, nodes[marks[0]], positions)] if marks else None
        if (index is None or kernel.op_type.startswith(REORDERS)) and sources:
            index = sources[0]
        if index is None:
            waiting.append(kernel)
            continue
        found[kernel.name] = index
        made_by.update(dict.fromkeys(kernel.output, index))
    read_by = {
        name: found[kernel.name] for kernel in graph.node if kernel.name in found for name in kernel.input
    }
    for kernel in waiting:  # What reorders an input of the graph belongs to what reads it.
        readers = [read_by[name] for name in kernel.output if name in read_by]
        if readers:
            found[kernel.name] = readers[0]
    return found


def _main_node(kernel: str, last: ir.Node, nodes: Collection[ir.Node]) -> ir.Node:
    """Which of the nodes that were merged into a kernel it is named for: FusedConv is a Conv."""
    # Its name is often that of the last one, such as an activation function or a normalization.
    merged = [last]
    for node in merged:
        if node.op_type == kernel or len(merged) > MOST_MERGED:
            break
        before = (value.producer() for value in node.inputs if value is not None)
        merged += [maker for maker in before if maker is not None and maker in nodes and maker not in merged]
    # The longest name: a MatMulIntegerToFloat is a MatMul, and not the Mul behind it.
    named = [node for node in merged if node.op_type in kernel]
    return max(named, key=lambda node: len(node.op_type)) if named else last


@dataclass(frozen=True, kw_only=True)
class OperatorSummary:
    """What all nodes of one type take."""

    operator: Annotated[str, "The type."]
    nodes: Annotated[int, "How many there are."]
    microseconds: Annotated[
        float, "Of a run; 0 if ONNX Runtime merged all of them into others, or computed them before it."
    ]
    share: Annotated[float, "Of the run, 0 to 1."]


def by_operator(nodes: Sequence[NodeTime]) -> tuple[OperatorSummary, ...]:
    """Time of each type of operator, the slowest first.

    Example:
        >>> nodes = [NodeTime("a", "Conv", 30.0), NodeTime("b", "Relu", 0.0), NodeTime("c", "Conv", 10.0)]
        >>> [(item.operator, item.nodes, item.microseconds, item.share) for item in by_operator(nodes)]
        [('Conv', 2, 40.0, 1.0), ('Relu', 1, 0.0, 0.0)]
    """
    times: dict[str, list[float]] = defaultdict(list)
    for node in nodes:
        times[node.operator].append(node.microseconds)
    whole = sum(node.microseconds for node in nodes) or 1.0
    found = (
        OperatorSummary(operator=name, nodes=len(own), microseconds=sum(own), share=sum(own) / whole)
        for name, own in times.items()
    )
    return tuple(sorted(found, key=lambda item: -item.microseconds))


def growth(first: Sequence[NodeTime], other: Sequence[NodeTime]) -> tuple[tuple[str, float], ...]:
    """The types of operators that take longer in another model than in the first, and by how much.

    Units: microseconds; the largest difference first.
    """
    before = {item.operator: item.microseconds for item in by_operator(first)}
    more = {item.operator: item.microseconds - before.get(item.operator, 0.0) for item in by_operator(other)}
    return tuple(sorted(((name, time) for name, time in more.items() if time > 0), key=lambda item: -item[1]))


def scaled_to(nodes: Sequence[NodeTime], microseconds: float) -> tuple[NodeTime, ...]:
    """The nodes with times that add up to those of a run without profiling, which costs time itself.

    Example:
        >>> nodes = [NodeTime("a", "Conv", 3.0), NodeTime("", "Add", 1.0)]
        >>> [node.microseconds for node in scaled_to(nodes, 2.0)]
        [1.5, 0.5]
    """
    scale = microseconds / (sum(node.microseconds for node in nodes) or 1.0)
    return tuple(replace(node, microseconds=scale * node.microseconds) for node in nodes)
