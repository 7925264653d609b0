"""Recordings: sequences of steps whose states a model hands on from one step to the next.

A recording is an item of any data that ptq reads, with its steps on the first axis, or values that are cut
into steps. Their batches are those of the steps, with the states that the float model has there.
"""

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from ptq_cli.calibdata.bind import axis_in_data, fit_dataset, fixed_batch_size, is_step, positional_label
from ptq_cli.calibdata.carries import (
    MASK,
    Carry,
    Cuts,
    cached_positions,
    cut_steps,
    fed_inputs,
    frame_shape,
    made_input,
)
from ptq_cli.calibdata.dataset.batches import Batch, Selection, StepBatch
from ptq_cli.calibdata.dataset.dataset import Dataset, DividedDataset, Division
from ptq_cli.calibdata.dataset.labels import as_labels
from ptq_cli.core.errors import CarryError, DataShapeError, EmptyDataError, NonFiniteActivationError
from ptq_cli.core.tensors import Array, TensorSpec, rows_of

LENGTHS = "lengths"  # array of the steps that count of each recording, where shorter ones were filled up
_IGNORED = -100  # label of a token that is followed by none
Step = Callable[[Mapping[str, Array]], Mapping[str, Array]]  # runs the float model on inputs by name


@dataclass(frozen=True, kw_only=True)
class _Recording:
    """Arrays [steps, …] of the inputs by name, and what holds for all steps; ``starts`` are of one sample."""

    name: str
    arrays: dict[str, Array]
    labels: Array | None
    constants: dict[str, Array]
    starts: dict[str, Array] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return min(map(len, self.arrays.values()))


class Recordings(Dataset):
    """The steps of recordings, with the states of the float model once ``carried`` has been given it.

    Without it there are the first steps alone, for which no model has to run.
    """

    def __init__(
        self, dataset: Dataset, inputs: Sequence[TensorSpec], carries: Sequence[Carry], cuts: Cuts
    ) -> None:
        self._source, self._inputs, self._carries, self._cuts = dataset, tuple(inputs), tuple(carries), cuts
        self._open: Callable[[], Step] | None = None
        self._is_step = is_step(inputs)
        self._fed = fed_inputs(dataset, inputs, carries)
        states = [item.state for item in carries if item.state.name in dataset.specs]
        unread = dataset.specs.keys() - {spec.name for spec in self._fed}
        self._lengths = tuple(name for name in (LENGTHS, MASK) if name in unread)
        lengths = [dataset.specs[name] for name in self._lengths]
        dataset, self._names = fit_dataset(dataset, [*self._fed, *states, *lengths])
        self._label = positional_label(dataset, self._names)
        self._kept = [*self._names.values(), *([self._label] if self._label is not None else [])]
        self._frames = {spec.name: frame_shape(spec, is_step=self._is_step) for spec in self._fed}
        self._items = self._laid_out(dataset.only(self._kept))
        self.source, self.class_names = dataset.source, dataset.class_names
        self.is_resumable, self.extras_allowed = dataset.is_resumable, dataset.extras_allowed
        self._tokens = next((spec.name for spec in self._fed if self._is_tokens(spec)), None)
        self.has_labels = dataset.has_labels or self._label is not None or self._tokens is not None
        self.count: int | None = None
        if not any(spec.shape for spec in self._fed):
            raise CarryError(
                "every input of the model is carried", hint="leave those that data are read for out"
            )
        with closing(self._recordings()) as recordings:
            first = next(recordings, None)
        if first is None:
            raise EmptyDataError(f"'{dataset.source}' has no recording", hint="pass data with recordings")
        found = self._batch([first], 0, {item.state.name: item.start(1) for item in carries}).inputs
        axes = {spec.name: spec.samples_axis for spec in inputs}
        self.specs = {
            spec.name: TensorSpec(
                spec.name,
                found[spec.name].dtype,
                _open_sizes(found[spec.name].shape, spec, axes),
                spec.batch_axis,
            )
            for spec in inputs
        }

    def carried(self, open_model: Callable[[], Step]) -> "Recordings":
        """Return all steps of the same recordings, with the states that a float model computes.

        The model is opened by who reads the steps.
        """
        found = copy.copy(self)
        found._open = open_model
        return found

    @property
    def other(self) -> "Recordings":
        """The recordings that are not in this part."""
        if not isinstance(self._source, DividedDataset):
            raise TypeError("recordings are divided first")
        return self._of(self._source.other)

    @property
    def carries(self) -> tuple[Carry, ...]:
        """The states that are handed on from step to step."""
        return self._carries

    def divided(self, division: Division) -> "Recordings":
        """Return the recordings that are not set aside: no steps of one are on both sides."""
        return self._of(DividedDataset(self._source, division))

    def _of(self, dataset: Dataset) -> "Recordings":
        found = Recordings(dataset, self._inputs, self._carries, self._cuts)
        found._open = self._open
        return found

    def along(self, axes: Mapping[str, int | None]) -> "Recordings":
        """The steps have their samples where the model has them already."""
        del axes
        return self

    def digest(self) -> str:
        """The digest of the source."""
        return self._source.digest()

    def _is_tokens(self, spec: TensorSpec) -> bool:
        return rows_of(spec) is not None and len(self._frames[spec.name]) == 1 and "type" not in spec.name

    def _laid_out(self, dataset: Dataset) -> Dataset:
        """Return the data with one recording an item, and its starts where the model has its samples."""
        states = {item.state.name: item.axis for item in self._carries if item.state.name in self._names}
        axes: dict[str, int | None] = {self._names[name]: axis or 0 for name, axis in states.items()}
        for spec in self._fed:
            name = self._names[spec.name]
            is_shared = not spec.shape or (spec.samples_axis is None and not self._is_step)
            axes[name] = axis_in_data(dataset, name, spec) if is_shared else 0
        axes |= dict.fromkeys(self._lengths, 0)
        if self._are_apart(dataset) and (found := dataset.singles(axes)) is not None:
            return found
        return dataset.along(axes)

    def _are_apart(self, dataset: Dataset) -> bool:
        """Tell whether each item is one recording, so that its first axis are the steps."""
        if dataset.holds_files:
            return True
        for spec in self._fed:
            frame, shape = self._frames[spec.name], dataset.specs[self._names[spec.name]].shape
            if not spec.shape or len(shape) > len(frame) + 1:
                continue
            # [steps, frame], or [recordings, values] where the size is another than that of a step.
            sizes = zip(shape[1:], frame, strict=False)
            return len(shape) <= len(frame) or all(None in pair or pair[0] == pair[1] for pair in sizes)
        return False

    def _recordings(self) -> Generator[_Recording]:
        with closing(self._items.batches(1)) as batches:
            for batch in batches:
                yield self._recording(batch)

    def _recording(self, batch: Batch) -> _Recording:
        where = f"'{batch.names[0]}' of '{self.source}'"
        arrays: dict[str, Array] = {}
        constants: dict[str, Array] = {}
        for spec in self._fed:
            array = batch.inputs[self._names[spec.name]]
            if not spec.shape or (spec.samples_axis is None and not self._is_step):
                constants[spec.name] = array
            else:
                arrays[spec.name] = cut_steps(array[0], spec, self._frames[spec.name], self._cuts, where)
        starts = {
            item.state.name: batch.inputs[self._names[item.state.name]]
            for item in self._carries
            if item.state.name in self._names
        }
        most = self._length(arrays, batch, where)
        arrays = {name: array[:most] for name, array in arrays.items()}
        return _Recording(
            name=batch.names[0],
            arrays=arrays,
            labels=self._labels(batch, arrays, most, where),
            constants=constants,
            starts=starts,
        )

    def _length(self, arrays: Mapping[str, Array], batch: Batch, where: str) -> int:
        """Return how many steps of a recording are used."""
        most = min(map(len, arrays.values()))
        if any(len(array) != most for array in arrays.values()):
            counts = ", ".join(f"'{name}' {len(array)}" for name, array in arrays.items())
            raise DataShapeError(
                f"the inputs of {where} differ in their number of steps: {counts}",
                hint="each input needs one row a step",
            )
        for name in self._lengths:
            # A number of steps, or the mask of a text that was filled up at its end.
            most = min(most, int(batch.inputs[self._names[name]].sum()))
        asked = self._cuts.steps
        if most < (asked or 1):
            raise DataShapeError(
                f"the recording {where} has {most} steps"
                + (f", and --set data.steps asks for {asked}" if asked else ""),
                hint=f"--set data.steps={most}, or leave it out: recordings may end at different steps"
                if most
                else "leave recordings without steps out",
            )
        return asked or most

    def _labels(self, batch: Batch, arrays: Mapping[str, Array], steps: int, where: str) -> Array | None:
        labels = batch.labels[0] if batch.labels is not None else None
        if self._label is not None:
            given = batch.inputs[self._label]
            labels = as_labels(given, len(given), f"the last array of {where}")[0]
        if labels is None and self._tokens is not None:
            tokens = arrays[self._tokens].astype(np.int64)
            return np.concatenate([tokens[1:], np.full_like(tokens[:1], _IGNORED)])
        if labels is None:
            return None
        labels = np.asarray(labels)
        if labels.ndim and len(labels) < steps:
            raise DataShapeError(
                f"the recording {where} has {len(labels)} labels for {steps} steps",
                hint="save one label for each step, or one for each recording",
            )
        if self._tokens is not None and labels.ndim == 1:
            labels = labels[:, None]  # Of each step a row with its one position.
        return labels[:steps] if labels.ndim else np.repeat(labels[None], steps)

    def _stream(self, batch_size: int, selection: Selection) -> Generator[Batch]:
        number, first, group = 0, 0, list[_Recording]()
        step = self._open() if self._open is not None else None
        with closing(self._recordings()) as recordings:
            for recording in recordings:
                group.append(recording)
                if len(group) == batch_size:
                    if number in selection:
                        yield from self._run(group, first, step)
                    number, first, group = number + 1, first + len(group), []
        if group and number in selection:
            self._require_full(group, batch_size)
            yield from self._run(group, first, step)

    def _require_full(self, group: Sequence[_Recording], batch_size: int) -> None:
        fixed = fixed_batch_size(self._inputs)
        lengths = {item.steps for item in group}
        if fixed not in (None, 1) and (len(group) != batch_size or len(lengths) > 1):
            raise DataShapeError(
                f"the model takes batches of {fixed}, but '{self.source}' does not have so many "
                "recordings of one length",
                hint="export the model with a dynamic batch axis, or use --samples and --set data.steps",
            )

    def _run(self, group: Sequence[_Recording], first: int, step: Step | None) -> Iterator[Batch]:
        longest = max(item.steps for item in group) if step is not None else 1
        active = list(range(len(group)))
        states = {item.state.name: self._start(item, group) for item in self._carries}
        for number in range(longest):
            rows = [row for row, index in enumerate(active) if group[index].steps > number]
            if len(rows) < len(active):
                self._require_full([group[index] for index in active], len(active))
                states = {item.state.name: item.of(states[item.state.name], rows) for item in self._carries}
                active = [active[row] for row in rows]
            batch = self._batch([group[index] for index in active], number, states)
            if step is None:
                yield batch
                return
            yield StepBatch(
                batch.inputs,
                batch.labels,
                batch.names,
                batch.axes,
                step=number,
                recordings=tuple(first + index for index in active),
                is_last=number + 1 == longest,
            )
            if number + 1 < longest:
                states = self._next(step(batch.inputs), batch)

    def _start(self, carry: Carry, group: Sequence[_Recording]) -> Array:
        name = carry.state.name
        if name not in self._names:
            return carry.start(len(group))
        found = [item.starts[name] for item in group]
        if carry.axis is None:
            return found[0][0] if found[0].ndim > len(carry.state.shape) else found[0]
        return np.concatenate(found, carry.axis)

    def _next(self, outputs: Mapping[str, Array], batch: Batch) -> dict[str, Array]:
        states = {}
        for item in self._carries:
            found = states[item.state.name] = outputs[item.output]
            item.require_fit(found)
            if found.dtype.kind == "f" and not np.isfinite(found).all():
                bad = np.argwhere(~np.isfinite(found))[0]
                sample = int(bad[item.axis]) if item.axis is not None else 0
                raise NonFiniteActivationError(
                    f"the state '{item.output}' is {found[tuple(bad)]} after {batch.names[sample]}",
                    hint="the float model's own state explodes; leave the recording out, or stop before that "
                    "with --set data.steps",
                )
        return states

    def _batch(self, group: Sequence[_Recording], number: int, states: Mapping[str, Array]) -> Batch:
        inputs, axes = dict[str, Array](), dict[str, int | None]()
        past = cached_positions(self._carries, states)
        width = group[0].arrays[self._tokens].shape[1] if self._tokens is not None else 1
        for spec in self._inputs:
            name, axis = spec.name, spec.samples_axis
            if name in states:
                inputs[name] = states[name]
            elif name in group[0].constants:
                inputs[name] = group[0].constants[name]
            elif name in group[0].arrays:
                parts = [item.arrays[name][number] for item in group]
                inputs[name] = np.stack(parts, axis) if axis is not None else np.asarray(parts[0], order="C")
            else:
                inputs[name] = made_input(spec, len(group), past, width)
            if axis != 0:
                axes[name] = axis
        labels = None
        if self.has_labels:
            labels = np.stack([item.labels[number] for item in group if item.labels is not None])
        return Batch(inputs, labels, tuple(f"{item.name} step {number}" for item in group), axes)


def _open_sizes(
    shape: tuple[int, ...], spec: TensorSpec, axes: Mapping[str, int | None]
) -> tuple[int | None, ...]:
    fixed = spec.shape or shape
    return tuple(
        None if axis == axes[spec.name] or (own is None and size == 0) else size
        for axis, (size, own) in enumerate(zip(shape, fixed, strict=False))
    )
