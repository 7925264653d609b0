"""The time of each operator of a model, as the graph has them before ONNX Runtime optimizes it."""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.stored import StoredModel, serialize
from ptq_cli.runtime.session import Session

SUFFIX = "_kernel_time"
FAST = 0.1
"""The quantile of a kernel's runs that counts: other work on the machine only ever adds time."""
FEWEST_RUNS, MOST_RUNS = 8, 200
MARK = re.compile(r"(?:node|value)(\d+)\.")


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


def operator_times(
    model: ir.Model, batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> OperatorTimes:
    """Profile a model, and return the time of each node.

    Args:
        model: is left as it is; the names of its nodes are unique.
        batches: inputs, used one after the other.
        threads: of ONNX Runtime.
        seconds: about how long to measure.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load or run the model.
    """
    marked, names = _marked(model), [node.name or "" for node in model.graph]
    stored = serialize(marked)
    whole = fast_run(stored, batches, threads=threads, seconds=seconds / 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        session = Session(stored, threads=threads, save_optimized=path, profile=Path(folder) / "profile")
        began, runs = perf_counter(), 0
        while runs < FEWEST_RUNS or (perf_counter() - began < seconds / 2 and runs < MOST_RUNS):
            session.run(batches[runs % len(batches)])
            runs += 1
        events = json.loads(Path(session.end_profile()).read_text(encoding="utf-8"))
        optimized = onnx.load(path, load_external_data=False)
    kernels = _kernel_times(events)
    by_node = dict.fromkeys(names, 0.0)
    for kernel, index in _origins(optimized.graph).items():
        by_node[names[index]] += kernels.get(kernel, 0.0)
    return OperatorTimes(by_node, whole.fast, whole.spread)


def _marked(model: ir.Model) -> ir.Model:
    """Return a copy whose nodes and computed values have names that ONNX Runtime's kernels keep."""
    marked = model.clone()
    for index, node in enumerate(marked.graph):
        node.name = f"node{index}."
        for value in node.outputs:
            if value.name:
                value.name = f"value{index}.{value.name}"
    return marked


@dataclass(frozen=True)
class WholeRuns:
    """How long runs of a whole model take.

    Attributes:
        fast: microseconds of a fast one.
        spread: the median one's time over that.
    """

    fast: float
    spread: float


def fast_run(
    model: StoredModel, batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> WholeRuns:
    """Return how long a run of a model takes.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load or run the model.
    """
    session = Session(model, threads=threads)
    session.run(batches[0])
    # One thread is the caller's, whose processor time leaves out what other processes do.
    clock = thread_time if threads == 1 else perf_counter
    times, began = list[float](), perf_counter()
    while len(times) < FEWEST_RUNS or (perf_counter() - began < seconds and len(times) < MOST_RUNS):
        start = clock()
        session.run(batches[len(times) % len(batches)])
        times.append((clock() - start) * 1e6)
    fast, middle = np.quantile(times, (FAST, 0.5))
    return WholeRuns(float(fast), float(middle / fast))


def _kernel_times(events: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Return the microseconds of each kernel, from ONNX Runtime's profile."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(SUFFIX):
            times[name.removesuffix(SUFFIX)].append(float(event["dur"]))  # type: ignore[arg-type]
    return {name: float(np.quantile(found, FAST)) for name, found in times.items()}


def _origins(graph: onnx.GraphProto) -> dict[str, int]:
    """Return which node each kernel belongs to, by its name; what only reorders belongs to what it reads."""
    made_by: dict[str, int] = {}
    found: dict[str, int] = {}
    waiting = []
    for kernel in graph.node:
        sources = [made_by[name] for name in kernel.input if name in made_by]
        marks = [mark for name in (kernel.name, *kernel.output) if (mark := MARK.match(name))]
        index = int(marks[0].group(1)) if marks else (sources[0] if sources else None)
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
