"""The time of each operator of a model, as the graph has them before ONNX Runtime optimizes it."""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
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
REORDERS = "Reorder"
MOST_MERGED = 16
"""Nodes in one kernel, about."""
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


@dataclass(frozen=True)
class NodeTime:
    """What a node of a graph takes.

    Attributes:
        name: of the node; may be empty.
        operator: its type.
        microseconds: of a profiled run; 0 if ONNX Runtime merged it into another node, or computed it before
            the run.
    """

    name: str
    operator: str
    microseconds: float


def operator_times(
    model: ir.Model, batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> OperatorTimes:
    """Profile a model, and return the time of each node, and of a run without profiling.

    Args:
        model: is left as it is; the names of its nodes are unique.
        batches: inputs, used one after the other.
        threads: of ONNX Runtime.
        seconds: about how long to measure.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load or run the model.
    """
    stored = serialize(_marked(model))
    whole = fast_run(stored, batches, threads=threads, seconds=seconds / 2)
    nodes = _node_times(model, stored, batches, threads, seconds / 2)
    return OperatorTimes({node.name: node.microseconds for node in nodes}, whole.fast, whole.spread)


def node_times(
    model: ir.Model, batches: Sequence[Mapping[str, Array]], *, threads: int, seconds: float
) -> tuple[NodeTime, ...]:
    """Profile a model, and return the time of each node of its graph, in the graph's order.

    A node with graphs inside, such as Loop, has their time.

    Args:
        model: is left as it is.
        batches: inputs, used one after the other.
        threads: of ONNX Runtime.
        seconds: about how long to measure; there are always eight runs.

    Raises:
        RuntimeFailedError: ONNX Runtime cannot load or run the model.

    Example:
        >>> import onnx
        >>> text = '''<ir_version: 10, opset_import: ["": 20]>
        ...     g (float[n, 64] x) => (float[n, 64] y) { h = Exp(x) y = Softmax(h) }'''
        >>> batch = {"x": np.ones((64, 64), np.float32)}
        >>> found = node_times(ir.from_proto(onnx.parser.parse_model(text)), [batch], threads=1, seconds=0.0)
        >>> [(node.operator, node.microseconds > 0) for node in found]
        [('Exp', True), ('Softmax', True)]
    """
    return _node_times(model, serialize(_marked(model)), batches, threads, seconds)


def _node_times(
    model: ir.Model, stored: StoredModel, batches: Sequence[Mapping[str, Array]], threads: int, seconds: float
) -> tuple[NodeTime, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        session = Session(stored, threads=threads, save_optimized=path, profile=Path(folder) / "profile")
        began, runs = perf_counter(), 0
        while runs < FEWEST_RUNS or (perf_counter() - began < seconds and runs < MOST_RUNS):
            session.run(batches[runs % len(batches)])
            runs += 1
        events = json.loads(Path(session.end_profile()).read_text(encoding="utf-8"))
        optimized = onnx.load(path, load_external_data=False)
    kernels, times = _kernel_times(events), [0.0] * len(model.graph)
    for kernel, index in _origins(optimized.graph, tuple(model.graph)).items():
        times[index] += kernels.get(kernel, 0.0)
    return tuple(
        NodeTime(node.name or "", node.op_type, time) for node, time in zip(model.graph, times, strict=True)
    )


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


def _origins(graph: onnx.GraphProto, nodes: Sequence[ir.Node]) -> dict[str, int]:
    """Return which node each kernel belongs to, by its name; what only reorders belongs to what it reads."""
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
    """Return which of the nodes that were merged into a kernel it is named for: FusedConv is a Conv.

    Its name is often that of the last one, such as an activation function or a normalization.
    """
    merged = [last]
    for node in merged:
        if node.op_type == kernel or len(merged) > MOST_MERGED:
            break
        before = (value.producer() for value in node.inputs if value is not None)
        merged += [maker for maker in before if maker is not None and maker in nodes and maker not in merged]
    # The longest name: a MatMulIntegerToFloat is a MatMul, and not the Mul behind it.
    named = [node for node in merged if node.op_type in kernel]
    return max(named, key=lambda node: len(node.op_type)) if named else last
