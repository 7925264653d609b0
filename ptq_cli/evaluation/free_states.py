"""Quantized models on their own states and on the float model's: errors by step, recordings drawn whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptq_cli.calibdata.dataset.batches import Batch, StepBatch
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array, bootstrap_intervals
from ptq_cli.evaluation.document.measurement import Measurement, StepDrift, StepErrors, Stream, Unit
from ptq_cli.evaluation.metrics.base import Resampling, Reweighed, SampleSums, State

if TYPE_CHECKING:
    from ptq_cli.calibdata.carries import Carry

FORCED = "on the float model's states"  # follows the name of a quantized model that is given them
MOST_POINTS = 100  # points of a curve of errors by step, at most
NOT_APART = "it is not summed up sample by sample, so recordings cannot be drawn"
Indices = npt.NDArray[np.int64]


class FreeStates:
    """The states of one quantized model that reads its own, while recordings are run step by step."""

    def __init__(self, carries: "Sequence[Carry]", outputs: Sequence[str]) -> None:
        self._carries = carries
        self._places = {item.output: outputs.index(item.output) for item in carries}
        self._states: dict[str, Array] = {}
        self._recordings: tuple[int, ...] = ()

    def inputs(self, batch: StepBatch) -> dict[str, Array]:
        """Inputs of a step; those of the first one are as they are."""
        if batch.step == 0:
            return batch.inputs
        rows = [self._recordings.index(number) for number in batch.recordings]
        if len(rows) < len(self._recordings):
            carried = {item.state.name: item for item in self._carries}
            self._states = {name: carried[name].of(array, rows) for name, array in self._states.items()}
        return {**batch.inputs, **self._states}

    def keep(self, batch: StepBatch, outputs: Sequence[Array]) -> None:
        """Keep what the next step reads."""
        self._states = {item.state.name: outputs[self._places[item.output]] for item in self._carries}
        self._recordings = batch.recordings


class SamplePlaces:
    """The recording and the step of each sample, in the order of the set."""

    def __init__(self) -> None:
        self._parts: list[Indices] = []

    def add(self, batch: StepBatch) -> None:
        """Note the samples of a batch."""
        steps = np.full(batch.size, batch.step)
        self._parts.append(np.stack([np.array(batch.recordings, np.int64), steps], axis=1))

    @property
    def places(self) -> Indices:
        """Recording and step of each sample, [samples, 2]; without one there is no row."""
        return np.concatenate(self._parts) if self._parts else np.empty((0, 2), np.int64)

    @property
    def recordings(self) -> Indices:
        """Which of the recordings that were seen each sample is of, [samples], counted from 0."""
        return np.unique(self.places[:, 0], return_inverse=True)[1].reshape(-1)

    def state(self) -> State:
        """Arrays for a checkpoint."""
        return {"places": self.places}

    def join(self, states: Sequence[State]) -> None:
        """Go on from a checkpoint."""
        self._parts = [state["places"] for state in states]

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set, which changes nothing."""


def drawn_by(recordings: Indices | None, found: Resampling, samples: int) -> Resampling:
    """A metric whose uncertainty is told by drawing recordings, and not their steps.

    Steps of one recording depend on each other, so drawing them would give too narrow intervals.

    Edge case: Without recordings it is as it was.
    """
    if recordings is None or isinstance(found, str):
        return found
    count = int(recordings.max()) + 1
    if isinstance(found, Reweighed):
        if found.units != samples:
            return NOT_APART
        of_weights = found.of_weights
        return Reweighed(count, lambda weights: of_weights(weights[recordings]), found.cost)
    if found.blocks or len(found.rows) != samples:
        return NOT_APART
    width, of_sums = found.rows.shape[1], found.of_sums

    def of_drawn(sums: Float64Array) -> Float64Array:
        # Recordings differ in length, and a mean divides by the number of all samples.
        return of_sums(sums[..., :width] * (samples / sums[..., width:]))

    return SampleSums(_summed(with_count(found.rows), recordings, count), of_drawn, blocks=True)


def with_count(rows: Float64Array) -> Float64Array:
    """Rows with a column of ones, whose sum is the number of samples."""
    return np.hstack([rows, np.ones((len(rows), 1))])


def _summed(rows: Float64Array, group: Indices, count: int) -> Float64Array:
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, group, rows)
    return sums


@dataclass(frozen=True, kw_only=True)
class SteppedMetric:
    """A metric of a quantized model on both kinds of states; ``of_float`` is None for a comparison."""

    name: str
    unit: Unit
    higher_is_better: bool
    free: Resampling
    forced: Resampling
    of_float: Resampling | None = None

    def sums(self, samples: int) -> dict[str, SampleSums] | None:
        """Sums of the samples by whose they are; None if they are not known of each."""
        found = {"free": self.free, "forced": self.forced, "of_float": self.of_float}
        known = {name: item for name, item in found.items() if item is not None}
        kept = {
            name: item
            for name, item in known.items()
            if isinstance(item, SampleSums) and not item.blocks and len(item.rows) == samples
        }
        return kept if len(kept) == len(known) else None


def stream_of(
    carried: Mapping[str, str],
    places: SamplePlaces,
    metrics: Sequence[SteppedMetric],
    forced: tuple[Measurement, ...],
) -> Stream:
    """Errors by step; the first metric tells the worst step."""
    found, recordings = places.places, places.recordings
    steps = found[:, 1]
    longest, samples = int(steps.max()) + 1, len(found)
    width = -(-longest // MOST_POINTS)
    known = [(item, sums) for item in metrics if (sums := item.sums(samples)) is not None]
    values = {item.name: _by_group(sums, steps // width, samples) for item, sums in known}
    counts = np.bincount(steps // width)
    curve = tuple(
        StepErrors(
            step=index * width,
            steps=min(width, longest - index * width),
            samples=int(count),
            **{
                kind: {name: float(item[kind][index]) for name, item in values.items() if kind in item}
                for kind in ("free", "forced", "of_float")
            },
        )
        for index, count in enumerate(counts)
    )
    first = next(iter(values.values()))["free"] if values else np.zeros(1)
    return Stream(
        carried=dict(carried),
        recordings=int(recordings.max()) + 1,
        longest=longest,
        forced=forced,
        curve=curve,
        worst_step=int(np.argmin(first)) * width,
        drifts=tuple(_drift(item, sums, steps, recordings) for item, sums in known),
    )


def _by_group(metrics: Mapping[str, SampleSums], group: Indices, samples: int) -> dict[str, Float64Array]:
    """Values of groups of samples: [groups] each."""
    count, found = int(group.max()) + 1, {}
    for name, item in metrics.items():
        sums = _summed(with_count(item.rows), group, count)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[name] = item.of_sums(sums[:, :-1] * (samples / sums[:, -1:]))
    return found


def _tenths(steps: Indices, recordings: Indices) -> tuple[npt.NDArray[np.bool_], ...]:
    """Samples of the first tenth of their recording, and those of the last."""
    lengths = np.zeros(int(recordings.max()) + 1, np.int64)
    np.maximum.at(lengths, recordings, steps + 1)
    own = lengths[recordings]
    tenth = np.maximum(own // 10, 1)
    return steps < tenth, steps >= own - tenth


def _drift(
    metric: SteppedMetric, sums: Mapping[str, SampleSums], steps: Indices, recordings: Indices
) -> StepDrift:
    """Loss from the first tenth of each recording to its last."""
    count, samples, sign = int(recordings.max()) + 1, len(steps), 1 if metric.higher_is_better else -1
    places: dict[tuple[str, int], slice] = {}
    columns: list[Float64Array] = []
    # Side by side, so that each resample draws the same recordings for all of them.
    for kind, item in sums.items():
        for index, part in enumerate(_tenths(steps, recordings)):
            columns.append(_summed(with_count(item.rows) * part[:, None], recordings, count))
            end = sum(column.shape[1] for column in columns)
            places[kind, index] = slice(end - columns[-1].shape[1], end)

    def value(kind: str, index: int, found: Float64Array) -> Float64Array:
        own = found[..., places[kind, index]]
        return sums[kind].of_sums(own[..., :-1] * (samples / own[..., -1:]))

    def worse(kind: str, index: int, found: Float64Array) -> Float64Array:
        """A drop, or a value so that less is better."""
        reference = value("of_float", index, found) if "of_float" in sums else 0.0
        return sign * (reference - value(kind, index, found))

    rows = np.hstack(columns)
    total, shown = rows.sum(0), worse if "of_float" in sums else value
    with np.errstate(divide="ignore", invalid="ignore"):
        free, forced = (worse(kind, 1, total) - worse(kind, 0, total) for kind in ("free", "forced"))
        (interval,) = bootstrap_intervals(
            rows, lambda found: (worse("free", 1, found) - worse("free", 0, found),), method="blocks"
        )
        return StepDrift(
            metric=metric.name,
            unit=metric.unit,
            first=float(shown("free", 0, total)),
            last=float(shown("free", 1, total)),
            loss=float(free),
            forced_loss=float(forced),
            interval=interval,
        )


def require_steps(batch: Batch) -> StepBatch:
    """A batch as the step that it is."""
    if not isinstance(batch, StepBatch):
        raise TypeError("a stream has batches of steps")
    return batch
