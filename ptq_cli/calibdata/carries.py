"""Which outputs of a model are the next step's inputs, and the steps of a recording."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import CarryError, DataShapeError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape, starts_empty
from ptq_cli.core.words import did_you_mean, entry_option

_ZEROS_IN = 256  # samples that a state has to be 0 in
_NOTHING = ("*", "none")  # ``--set 'data.carry.*=none'``: no output is fed back
# What exporters add to the name of a state, at its start and at its end.
_BEFORE = re.compile(
    r"^((present|past)(_key_values?)?|previous|prev|next|new|updated|initial|init|output|out|input|in)[_.](?=\w)"
)
_AFTER = re.compile(r"(?<=\w)([_.](output|out|input|in|next|new|prev|init|t|n|0)|N|(?<=^[hc])[n0])$")


@dataclass(frozen=True)
class Carry:
    """An output that is the next step's input, whose spec is ``state``."""

    output: str
    state: TensorSpec

    @property
    def axis(self) -> int | None:
        """The axis of the samples."""
        return self.state.samples_axis

    def start(self, samples: int) -> Array:
        """Return zeros for the first step; a cache is empty."""
        sizes = [0 if size is None else size for size in self.state.shape]
        if self.axis is not None:
            sizes[self.axis] = samples
        return np.zeros(sizes, self.state.dtype)

    def of(self, array: Array, rows: Sequence[int]) -> Array:
        """Return the states of some samples."""
        return array if self.axis is None else np.take(array, rows, self.axis)

    def require_fit(self, array: Array) -> None:
        """Refuse an output that does not have the shape of the input that it is to be."""
        pairs = zip(array.shape, self.state.shape, strict=False)
        fits = array.ndim == len(self.state.shape) and all(size in (None, own) for own, size in pairs)
        if not fits:
            raise CarryError(
                f"{entry_option('data.carry', self.output, self.state.name)}: the output '{self.output}' has "
                f"shape {format_shape(array.shape)}, and the "
                f"input '{self.state.name}' {format_shape(self.state.shape)}",
                hint="name the output that is the next step's input",
            )

    def __str__(self) -> str:
        return f"{self.output}={self.state.name}"


def cached_positions(carries: Sequence[Carry], states: Mapping[str, Array]) -> int:
    """Return how many positions the caches among some states hold."""
    for item in carries:
        for axis, size in enumerate(item.state.shape):
            if size is None and axis != item.axis:
                return int(states[item.state.name].shape[axis])
    return 0


def named_carries(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return which outputs are named; none if the last said is ``data.carry.*=none``.

    Tables of recipes and flags are joined in the order in which they count.

    Example:
        >>> named_carries({"stateN": "state", "*": "none"}), named_carries({"*": "none", "stateN": "state"})
        ({}, {'stateN': 'state'})
    """
    said = [*wanted.items()]
    return {} if said[-1:] == [_NOTHING] else dict(item for item in said if item != _NOTHING)


def carries_of(
    wanted: Mapping[str, str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    is_given: Callable[[str], bool],
) -> tuple[Carry, ...]:
    """Return the states to carry: those that are wanted, or else that names, types and shapes show.

    An input that the data have or make is carried only where that is wanted: its array is the start then.
    ``present.*`` stands for all outputs that begin so, each with the input of the same ending.
    """
    if wanted and not named_carries(wanted):
        return ()
    wanted = named_carries(wanted)
    states, found = {spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs}
    if not wanted:
        wanted = _shown_carries([spec for spec in inputs if not is_given(spec.name)], outputs)
    wanted = _spelled_out(wanted, list(found))
    for output, name in wanted.items():
        _require_pair(output, name, states, found)
    return tuple(Carry(output, states[name]) for output, name in wanted.items())


def state_axes(
    carries: Sequence[Carry], inputs: Sequence[TensorSpec], axes: Mapping[str, int | str]
) -> dict[str, int]:
    """Return the axis of the samples of states that lead with a fixed size, and have one open size.

    It is that one if all other inputs lead with an open size. States that ``axes`` names are left out.
    """
    states = [item.state for item in carries if not axes.keys() & {item.state.name, "*"}]
    names = {item.state.name for item in carries}
    if any(spec.shape and spec.shape[0] is not None for spec in inputs if spec.name not in names):
        return {}
    sizes = {spec.name: spec.shape for spec in states if spec.shape and spec.shape[0] is not None}
    return {name: shape.index(None) for name, shape in sizes.items() if shape.count(None) == 1}


def _spelled_out(wanted: Mapping[str, str], outputs: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for output, name in wanted.items():
        start, star, end = output.partition("*")
        matching = [item for item in outputs if item.startswith(start) and item.endswith(end)] if star else []
        pairs |= {item: name.replace("*", item[len(start) : len(item) - len(end)]) for item in matching}
        if not matching:
            pairs[output] = name
    return pairs


def _shown_carries(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, str]:
    found: dict[str, str] = {}
    for spec in inputs:
        fitting = [
            item.name
            for item in outputs
            if stem_of(item.name) == stem_of(spec.name) and not _misfit(item, spec) and item.name not in found
        ]
        if len(fitting) == 1:
            found[fitting[0]] = spec.name
    return found


def zero_states(
    dataset: Dataset, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batch_size: int
) -> tuple[str, ...]:
    """Return the states that the data give, and that are 0 in all of the first samples.

    A state is an input that an output fits by name, type and shape: the next step reads it.
    """
    shown = {*_shown_carries([spec for spec in inputs if spec.name in dataset.specs], outputs).values()}
    seen = 0
    if not shown:
        return ()
    with closing(dataset.batches(batch_size)) as batches:
        for batch in batches:
            shown = {name for name in shown if not np.any(batch.inputs[name])}
            seen += batch.size
            if seen >= _ZEROS_IN or not shown:
                break
    return tuple(sorted(shown))


def stem_of(name: str) -> str:
    """Return the name of a state without what tells its input from its output.

    Example:
        >>> [stem_of(name) for name in ("present.0.key", "past_key_values.0.key", "stateN", "h0", "hn")]
        ['0.key', '0.key', 'state', 'h', 'h']
        >>> [stem_of(name) for name in ("new_state", "state_out", "h_in", "cache_t", "x")]
        ['state', 'state', 'h', 'cache', 'x']
    """
    before = _BEFORE.sub("", name)
    return _AFTER.sub("", before).lower()


def _misfit(output: TensorSpec, state: TensorSpec) -> str:
    """Say why an output cannot be fed back; empty if it can. Open sizes are known only once it ran."""
    if output.dtype != state.dtype:
        return f"is {output.dtype}, and the input '{state.name}' is {state.dtype}"
    shapes = (
        f"has shape {format_shape(output.shape)}, and the input '{state.name}' {format_shape(state.shape)}"
    )
    if len(output.shape) != len(state.shape):
        return shapes
    pairs = zip(output.shape, state.shape, strict=True)
    return shapes if any(None not in pair and pair[0] != pair[1] for pair in pairs) else ""


def _require_pair(
    output: str, name: str, states: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> None:
    for kind, wanted, known in (("output", output, outputs), ("input", name, states)):
        if wanted not in known:
            raise CarryError(
                f"{entry_option('data.carry', output, name)}: the model has no {kind} '{wanted}'"
                f"{did_you_mean(wanted, list(known))}",
                hint=f"its {kind}s: {', '.join(known)}; write --set data.carry.OUTPUT=INPUT",
            )
    if reason := _misfit(outputs[output], states[name]):
        raise CarryError(
            f"{entry_option('data.carry', output, name)}: the output '{output}' {reason}",
            hint="name the output that is the next step's input, or export the model so that both are alike",
        )


def require_start(carry: Carry, given: Collection[str]) -> None:
    """Refuse a state whose size at the first step neither the model nor the data tell."""
    name = carry.state.name
    is_open = any(
        size is None and axis != carry.axis for axis, size in enumerate(carry.state.shape)
    ) and not starts_empty(name)
    if is_open and name not in given:
        raise CarryError(
            f"the state '{name}' is {format_shape(carry.state.shape)}, so its size at the first step is "
            "not known",
            hint=f"save its start as an array '{name}' in the data, or name the axis of the samples: "
            f"{entry_option('data.batch_axis', name, 1)}",
        )


# Inputs of decoders that follow from the number of the step, so that no data has to have them
MASK, POSITIONS, CACHE_POSITION = MADE = ("attention_mask", "position_ids", "cache_position")


@dataclass(frozen=True)
class Cuts:
    """How a recording becomes steps.

    Attributes:
        steps: how many are used of each; None for all.
        frame: values of a step, where a recording is one row of values and the model does not say it.
        hop: values from the start of a step to the start of the next; None for those of a step. The first
            step begins with zeros where they overlap, so that each step ends with ``hop`` new values.
    """

    steps: int | None = None
    frame: int | None = None
    hop: int | None = None


def fed_inputs(
    dataset: Dataset, inputs: Sequence[TensorSpec], carries: Sequence[Carry]
) -> tuple[TensorSpec, ...]:
    """Return the inputs that each step of the data has: neither states nor what follows from its number.

    Masks and positions of whole texts say nothing of one token behind a cache.
    """
    states = {item.state.name for item in carries}
    has_cache = any(map(starts_empty, states))
    return tuple(
        spec
        for spec in inputs
        if spec.name not in states
        and not (spec.name in MADE and (has_cache or spec.name not in dataset.specs))
    )


def frame_shape(spec: TensorSpec, *, is_step: bool) -> tuple[int | None, ...]:
    """Return the shape of an input in one step of one recording.

    Example:
        >>> frame_shape(TensorSpec("x", np.dtype("f4"), (2, None, 48), 1), is_step=False)
        (2, 48)
    """
    axis = None if is_step else spec.samples_axis
    return tuple(size for index, size in enumerate(spec.shape) if index != axis)


def cut_steps(array: Array, spec: TensorSpec, frame: tuple[int | None, ...], cuts: Cuts, where: str) -> Array:
    """Return an input's array [steps, …] of one recording: one row of values is cut.

    Raises: DataShapeError: the array has other axes, or nobody says how many values a step takes.
    """
    if array.ndim == len(frame) + 1:
        return array
    if array.ndim != 1 or len(frame) != 1:
        raise DataShapeError(
            f"the recording {where} is {format_shape(array.shape)} for '{spec.name}', expected "
            f"{format_shape((None, *frame))}: steps first",
            hint="save [recordings, steps, …] as one array, or a file [steps, …] for each recording",
        )
    size = frame[0] or cuts.frame or (1 if array.dtype.kind in "iu" else None)
    if size is None:
        raise DataShapeError(
            f"the recording {where} is one row of values, and the model does not say how many "
            f"'{spec.name}' takes a step",
            hint="pass --set data.frame=512, or save arrays [steps, values]",
        )
    hop = cuts.hop or size
    padded = np.concatenate([np.zeros(max(size - hop, 0), array.dtype), array])
    count = max((len(padded) - size) // hop + 1, 0)
    if not count:
        return array[:0]
    return np.lib.stride_tricks.sliding_window_view(padded, size)[: count * hop : hop]


def made_input(spec: TensorSpec, samples: int, past: int, width: int) -> Array:
    """Return the mask of a decoder, or the positions of its tokens, behind so many in its cache."""
    if spec.name == MASK:
        return np.ones((samples, past + width), spec.dtype)
    positions = np.arange(past, past + width).astype(spec.dtype)
    return positions if len(spec.shape) == 1 else np.tile(positions, (samples, 1))
