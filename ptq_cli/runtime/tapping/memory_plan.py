"""Sizes of inner tensors, and how many samples and tensors fit below a limit of memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import MemoryLimitError
from ptq_cli.core.memory import resident_bytes
from ptq_cli.core.tensors import Array
from ptq_cli.core.words import format_bytes
from ptq_cli.models.graph_reading import every_value
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import handed_out, tap

SPARE = 1.1  # factor of the estimates: allocators round up


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Memory of one sample and one session, in bytes.

    Attributes:
        reached: the most that the process took so far: reading and turning a model may take more than running
            it.
        base: of the process now, before anything runs.
        fixed: besides, whatever the plan: statistics, and the batches that wait.
        session: of the model's weights, once for each session.
        scratch: of the tensors that a run makes for itself, for each sample.
        taps: each tapped tensor, for each sample.
    """

    reached: int
    base: int
    fixed: int
    session: int
    scratch: int
    taps: Mapping[str, int]


@dataclass(frozen=True)
class MemoryPlan:
    """How batches are run, below a limit.

    Attributes:
        groups: the tapped tensors of each pass.
        peak: the estimate, in bytes.
    """

    samples: int
    at_once: int
    groups: tuple[tuple[str, ...], ...]
    peak: int

    def __str__(self) -> str:
        passes = "in one pass" if len(self.groups) == 1 else f"in {len(self.groups)} passes"
        runs = "one run at a time" if self.at_once < 2 else f"{self.at_once} runs at once"
        pieces = f"pieces of {self.samples} sample{'s' * (self.samples != 1)}"
        tensors = sum(len(group) for group in self.groups)
        return f"{tensors} tensors {passes}, {pieces}, {runs}: at most about {format_bytes(self.peak)}"


def plan_memory(
    needs: Needs, limit: int, *, most_samples: int, least_samples: int, at_once: int
) -> MemoryPlan:
    """Return the fastest plan below a limit: large pieces in one pass, or smaller ones, or several passes.

    A batch that cannot be cut has as many ``least_samples`` as samples.

    Example:
        >>> needs = Needs(reached=90, base=100, fixed=10, session=20, scratch=5, taps={"a": 30, "b": 30})
        >>> str(plan_memory(needs, 400, most_samples=8, least_samples=1, at_once=1))
        '2 tensors in one pass, pieces of 1 sample, one run at a time: at most about 270 bytes'
        >>> plan_memory(needs, 250, most_samples=8, least_samples=1, at_once=1).groups
        (('a',), ('b',))
    """
    if limit < needs.reached:
        raise MemoryLimitError(
            f"{format_bytes(limit)} of memory is not enough: {format_bytes(needs.reached)} were taken to "
            "open the model, before anything was run",
            hint=f"--set runtime.max_memory={-(-_least(needs, least_samples) // 2**20)}MiB",
        )
    whole = (tuple(needs.taps),)
    for runs in dict.fromkeys((at_once, min(at_once, 2), 1)):
        samples = most_samples
        while samples >= least_samples:
            peak = _peak(needs, whole, samples, runs)
            if peak <= limit:
                return MemoryPlan(samples, runs, whole, peak)
            if samples == least_samples:
                break
            samples = max(samples // 2, least_samples)
    for count in range(2, len(needs.taps) + 1):
        groups = _divide(needs.taps, count)
        peak = _peak(needs, groups, least_samples, 1)
        if peak <= limit:
            return MemoryPlan(least_samples, 1, groups, peak)
    least = _least(needs, least_samples)
    raise MemoryLimitError(
        f"{format_bytes(limit)} of memory is not enough: about {format_bytes(least)} are needed with one "
        f"tensor at a time, {format_bytes(needs.base)} of them before anything runs",
        hint=f"--set runtime.max_memory={-(-least // 2**20)}MiB",
    )


def require_host_memory(reached: int, more: int, limit: int) -> int:
    """Return the estimate of the host's peak where the tensors are on a device: nothing is left to plan.

    ``reached`` is the most that the process took so far, with the device in use; ``more`` is what batches
    that wait and statistics will take besides.
    """
    peak = reached + int(SPARE * more)
    if peak > limit:
        raise MemoryLimitError(
            f"{format_bytes(limit)} of the host's memory is not enough: about {format_bytes(peak)} are "
            f"needed, {format_bytes(reached)} of them with the first samples on the device",
            hint=f"--set runtime.max_memory={-(-peak // 2**20)}MiB",
        )
    return peak


def _least(needs: Needs, samples: int) -> int:
    divided = (_divide(needs.taps, count) for count in range(1, len(needs.taps) + 1))
    return max(needs.reached, min(_peak(needs, groups, samples, 1) for groups in divided))


def _peak(needs: Needs, groups: tuple[tuple[str, ...], ...], samples: int, at_once: int) -> int:
    largest = max((sum(needs.taps[name] for name in group) for group in groups), default=0)
    # A first run has its tensors twice, to learn their shapes.
    tensors = 2 * at_once * samples * largest
    work = needs.fixed + len(groups) * needs.session + at_once * samples * needs.scratch + tensors
    return needs.base + int(SPARE * work)


def _divide(taps: Mapping[str, int], count: int) -> tuple[tuple[str, ...], ...]:
    """Return groups of nearly the same size, the largest tensors first into the emptiest group."""
    groups: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for name in sorted(taps, key=lambda name: -taps[name]):
        emptiest = sizes.index(min(sizes))
        groups[emptiest].append(name)
        sizes[emptiest] += taps[name]
    order = {name: place for place, name in enumerate(taps)}
    return tuple(tuple(sorted(group, key=order.__getitem__)) for group in groups)


_SUFFIX = "/ptq.shape"


def tapped_sizes(
    model: ir.Model, taps: Sequence[str], inputs: Mapping[str, Array]
) -> tuple[dict[str, int], int]:
    """Return how many bytes each tapped tensor takes for a batch, and how many the run takes without them.

    The model is run with an operator ``Shape`` behind each tensor, so that none is kept.
    """
    values = {value.name: value for value in every_value(model.graph)}
    before = resident_bytes()
    shapes = measured_shapes(model, taps, inputs)
    grown = max(0, resident_bytes() - before)
    return {name: prod(shapes[name]) * _item_bytes(values[name]) for name in taps}, grown


def measured_shapes(
    model: ir.Model, tensors: Sequence[str], inputs: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that computed tensors have for a batch: the model runs, and keeps none of them.

    A tensor of a nested graph has one axis, as long as all its values; it may be empty.
    """
    shaped = model.clone()
    values = handed_out(shaped, tensors)
    for name in tensors:
        node = ir.node("Shape", [values[name]])
        node.outputs[0].name = f"{name}{_SUFFIX}"
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        shaped.graph.append(node)
    session = Session(tap(shaped, [f"{name}{_SUFFIX}" for name in tensors]), threads=1)
    found = session.run(inputs)
    return {
        name: tuple(int(size) for size in shape.astype(np.int64))
        for name, shape in zip(tensors, found, strict=True)
    }


def _item_bytes(value: ir.Value) -> int:
    dtype = value.dtype or ir.DataType.FLOAT
    return max(1, round(dtype.itemsize))
