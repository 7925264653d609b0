"""Axes of the samples in outputs, which are put first so that every metric sees them sample by sample.

A recurrent network may return its steps first, [steps, samples, classes]; one that takes a single sample may
return anything.
"""

from collections.abc import Sequence

import numpy as np

from ptq_cli.core.tensors import Array, is_array

Axis = int | None
"""Where the samples of an output are; None where that is not known, and the output is left as it is."""
NO_AXIS = -1  # all of the output is of the one sample


def axes_for_one_sample(outputs: Sequence[Array]) -> tuple[Axis, ...]:
    """Axis of the sample in each output of a model that only takes batches of one.

    Example:
        >>> axes_for_one_sample([np.ones((1, 10)), np.ones((20, 1, 10)), np.ones((20, 10))])
        (0, 1, -1)
    """
    return tuple(
        next((axis for axis, size in enumerate(output.shape[:2]) if size == 1), NO_AXIS)
        if is_array(output)
        else None
        for output in outputs
    )


def axes_that_grow(one: Sequence[Array], two: Sequence[Array]) -> tuple[Axis, ...]:
    """Axis of each output that grows with the batch.

    Edge case: None where no axis or several do, such as of detections, whose number depends on what is seen.

    Example:
        >>> axes_that_grow([np.ones((2, 1, 10)), np.ones(7)], [np.ones((2, 2, 10)), np.ones(9)])
        (1, None)
    """
    return tuple(_growing_axis(a, b) for a, b in zip(one, two, strict=True))


def _growing_axis(one: Array, two: Array) -> Axis:
    if not is_array(one) or not is_array(two) or one.ndim != two.ndim:
        return None
    grown = [
        axis for axis, sizes in enumerate(zip(one.shape, two.shape, strict=True)) if sizes[0] != sizes[1]
    ]
    is_found = len(grown) == 1 and (one.shape[grown[0]], two.shape[grown[0]]) == (1, 2)
    return grown[0] if is_found else None


def turned(outputs: Sequence[Array], axes: Sequence[Axis]) -> list[Array]:
    """Outputs with their samples on axis 0."""
    return [_turned(*pair) for pair in zip(outputs, axes, strict=True)]


def _turned(output: Array, axis: Axis) -> Array:
    if axis is None or not is_array(output):
        return output
    return output[None] if axis == NO_AXIS else np.moveaxis(output, axis, 0)


def axis_before(axis: int, samples: Axis) -> int:
    """Axis of an output as the model has it, from its axis after ``samples`` were put on axis 0.

    Example:
        >>> [axis_before(axis, 1) for axis in (1, 2)], axis_before(1, NO_AXIS), axis_before(1, 0)
        ([0, 2], 0, 1)
    """
    if samples is None:
        return axis
    return axis - 1 if samples == NO_AXIS or axis <= samples else axis
