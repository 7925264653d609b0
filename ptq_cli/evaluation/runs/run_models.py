"""All models run on the same batches, once, and fed to an evaluator; the batches of a shard by parts."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.batches import Batch, Shard
from ptq_cli.core.errors import MergeError, MetricError
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.free_states import FreeStates, require_steps
from ptq_cli.evaluation.metrics.base import State
from ptq_cli.evaluation.runs.evaluator import Evaluator, ModelOutputs
from ptq_cli.evaluation.runs.model_outputs import Axis, turned

ALL_AT_ONCE = "evaluate all samples in one process, or with --set data.batch_size=1"


@dataclass(frozen=True)
class MeasuredBatch:
    """What the metrics hold after one batch alone."""

    number: int
    samples: int
    state: State


class PartEvaluator:
    """Measures the batches of a shard.

    A sum of all of them would depend on the order in which shards are added up. So each batch is measured by
    metrics of its own, and these are joined in the order of the set: what comes out is what one process gives
    that sees all batches, to the last bit.
    """

    def __init__(self, make: Callable[[], Evaluator], shard: Shard, batch_size: int) -> None:
        self.samples = 0
        self.batches: list[MeasuredBatch] = []
        self._make, self._shard, self._batch_size = make, shard, batch_size
        self._first = make()
        for name, reason in self._first.indivisible.items():
            raise MetricError(
                f"{name} cannot be measured in parts: {reason}",
                hint="leave the metric out, or evaluate all samples in one process",
            )

    def update(self, batch: Batch, outputs: ModelOutputs) -> None:
        """Measure one batch."""
        if self.batches and self.batches[-1].samples != self._batch_size:
            raise _not_full(self.batches[-1], self._batch_size)
        number = len(self.batches) * self._shard.count + self._shard.number - 1
        evaluator = self._make()
        evaluator.start_at(number * self._batch_size)
        evaluator.update(batch, outputs)
        self.samples += batch.size
        if evaluator.is_refused:
            raise evaluator.refusal(self.samples)
        self.batches.append(MeasuredBatch(number, batch.size, evaluator.metrics_state()))

    def watches_state(self) -> State:
        """Arrays of the watches."""
        return self._first.watches_state()

    def resume(self, batches: Sequence[MeasuredBatch], watched: State) -> None:
        """Go on after these batches.

        Raises: ValueError, ReportError: what the watches have seen is damaged.
        """
        self.batches, self.samples = list(batches), sum(batch.samples for batch in batches)
        self._first.join((), [watched], samples=self.samples)


def joined_batches(
    make: Callable[[], Evaluator], batches: Iterable[MeasuredBatch], watched: Sequence[State], batch_size: int
) -> Evaluator:
    """An evaluator that has seen all batches of a set.

    Raises:
        MergeError: another batch than the last one was not full, or one is missing.
        MetricError: the parts contradict each other.
        ValueError, ReportError: a state is damaged.
    """
    ordered = sorted(batches, key=lambda batch: batch.number)
    for place, batch in enumerate(ordered):
        if batch.number != place:
            raise ValueError(f"batch {place} is missing")
        if batch.samples != batch_size and batch is not ordered[-1]:
            raise _not_full(batch, batch_size)
    evaluator = make()
    evaluator.join(
        [batch.state for batch in ordered], watched, samples=sum(batch.samples for batch in ordered)
    )
    return evaluator


def _not_full(batch: MeasuredBatch, batch_size: int) -> MergeError:
    return MergeError(
        f"batch {batch.number + 1} of the data has {batch.samples} of {batch_size} samples, so a shard "
        "cannot know which samples follow",
        hint=f"the shapes of the data's samples differ: {ALL_AT_ONCE}",
    )


_Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class PackedKey:
    """The arrays of a key of all states that have the same dtype and rank."""

    key: str
    dtype: str
    rank: int


def pack_states(states: Sequence[State]) -> tuple[tuple[PackedKey, ...], dict[str, npt.NDArray[Any]]]:
    """All states as arrays of rank 1, with the keys that they are of.

    Example:
        >>> keys, arrays = pack_states([{"rows": np.ones((2, 1))}, {"rows": np.zeros((1, 1))}])
        >>> keys
        (PackedKey(key='rows', dtype='float64', rank=2),)
        >>> {name: array.tolist() for name, array in arrays.items()}
        {'0.at': [0, 1], '0.shapes': [2, 1, 1, 1], '0.values': [1.0, 1.0, 0.0]}
    """
    found: dict[PackedKey, list[tuple[int, npt.NDArray[Any]]]] = {}
    for index, state in enumerate(states):
        for key, array in state.items():
            found.setdefault(PackedKey(key, array.dtype.name, array.ndim), []).append((index, array))
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, parts in enumerate(found.values()):
        arrays[f"{number}.at"] = np.array([index for index, _ in parts], np.int64)
        arrays[f"{number}.shapes"] = np.array([array.shape for _, array in parts], np.int64).reshape(-1)
        arrays[f"{number}.values"] = np.concatenate([array.reshape(-1) for _, array in parts])
    return tuple(found), arrays


def unpack_states(keys: Sequence[PackedKey], arrays: _Arrays, count: int) -> list[State]:
    """States that ``pack_states`` packed.

    Raises:
        ValueError: the arrays cannot have been written by it.
        KeyError: one is missing.
    """
    states: list[State] = [{} for _ in range(count)]
    for number, packed in enumerate(keys):
        at, shapes, values = (arrays[f"{number}.{name}"] for name in ("at", "shapes", "values"))
        if values.dtype.name != packed.dtype or at.dtype != np.int64 or shapes.dtype != np.int64:
            raise ValueError(f"'{packed.key[:80]}' has another type than its header says")
        if packed.rank < 0 or len(shapes) != packed.rank * len(at) or (shapes < 0).any():
            raise ValueError(f"'{packed.key[:80]}' has shapes that are not valid")
        start = 0
        for index, shape in zip(at.tolist(), shapes.reshape(len(at), packed.rank).tolist(), strict=True):
            end = start + math.prod(shape)
            if not 0 <= index < count or packed.key in states[index] or end > len(values):
                raise ValueError(f"'{packed.key[:80]}' does not fit its batches")
            states[index][packed.key] = values[start:end].reshape(shape)
            start = end
    return states


# Inputs by name to outputs in the order of the model's output names.
Run = Callable[[dict[str, Array]], Sequence[Array]]


@dataclass(frozen=True)
class Runs:
    """The models: the float one and the quantized ones."""

    of_float: Run
    quantized: tuple[Run, ...]

    def of(self, batch: Batch) -> ModelOutputs:
        """Each model's outputs of a batch."""
        return ModelOutputs(self.of_float(batch.inputs), [run(batch.inputs) for run in self.quantized])


@dataclass(frozen=True)
class StreamRuns(Runs):
    """Models of which the quantized ones run on their own states, and then on the float model's.

    Attributes:
        own: the states of each quantized model.
        axes: where the samples of each output are; what is fed back stays as the model has it.
    """

    own: tuple[FreeStates, ...] = ()
    axes: tuple[Axis, ...] = ()

    def of(self, batch: Batch) -> ModelOutputs:
        """Each model's outputs of a step."""
        step, free = require_steps(batch), []
        for run, states in zip(self.quantized, self.own, strict=True):
            outputs = run(states.inputs(step))
            states.keep(step, outputs)
            free.append(turned(outputs, self.axes))
        forced = [turned(run(step.inputs), self.axes) for run in self.quantized]
        return ModelOutputs(turned(self.of_float(step.inputs), self.axes), [*free, *forced])


def run_evaluator(
    evaluator: Evaluator | PartEvaluator,
    runs: Runs,
    batches: Iterable[Batch],
    *,
    total: int | None = None,
    progress: ProgressCallback = silent,
    after_batch: Callable[[], None] | None = None,
) -> None:
    """Feed the outputs of all models to an evaluator, one batch at a time; the float model runs once for all.

    Memory holds one batch, and what each sample adds to a metric: see ``SampleSums``. The size of the batches
    changes no value, as long as the models' outputs do not depend on it.

    The evaluator may have seen samples before, which count in the progress: ``batches`` are what is left of
    the set, ``total`` is the number of samples of all of it.
    """
    for batch in batches:
        evaluator.update(batch, runs.of(batch))
        progress(Progress("evaluate", evaluator.samples, total))
        if after_batch is not None and batch.completes:
            after_batch()


def samples_first(run: Run, axes: Sequence[Axis]) -> Run:
    """Function that runs a model and puts the samples of its outputs on axis 0."""
    if all(axis in (0, None) for axis in axes):
        return run
    return lambda inputs: turned(run(inputs), axes)
