"""Steps of a recording: their inputs, how a row of values is cut, and what follows from their number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.calibdata.carries import Carry
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import DataShapeError
from ptq_cli.core.tensors import Array, TensorSpec, format_shape, starts_empty

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

    Raises:
        DataShapeError: the array has other axes, or nobody says how many values a step takes.
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
