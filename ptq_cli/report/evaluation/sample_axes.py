"""Outputs whose samples are not on axis 0 are turned, so that every metric sees them sample by sample.

A recurrent network may return its steps first, [steps, samples, classes]; one that takes a single sample may
return anything.
"""

from collections.abc import Sequence

import numpy as np

from ptq_cli.core.tensors import Array, is_array
from ptq_cli.report.evaluation.run_models import Run

Axis = int | None
"""Where the samples of an output are; None where that is not known, and the output is left as it is."""
NO_AXIS = -1
"""All of the output is of the one sample."""


def axes_for_one_sample(outputs: Sequence[Array]) -> tuple[Axis, ...]:
    """Return where the sample is in the outputs of a model that only takes batches of one.

    Example:
        >>> axes_for_one_sample([np.ones((1, 10)), np.ones((20, 1, 10)), np.ones((20, 10))])
        (0, 1, -1)
    """
    return tuple(_only_axis(output) if is_array(output) else None for output in outputs)


def _only_axis(output: Array) -> Axis:
    found = (axis for axis, size in enumerate(output.shape[:2]) if size == 1)
    return next(found, NO_AXIS)


def axes_that_grow(one: Sequence[Array], two: Sequence[Array]) -> tuple[Axis, ...]:
    """Return the axis of each output that grows with the batch.

    Args:
        one: the outputs for one sample.
        two: those for two samples, of which the first is the same.

    Edge case:
        None where no axis or several do, such as of detections, whose number depends on what is seen.

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


def samples_first(run: Run, axes: Sequence[Axis]) -> Run:
    """Return what runs a model and puts the samples of its outputs on axis 0.

    Args:
        run: the model.
        axes: of each output, where the samples are.

    Example:
        >>> run = samples_first(lambda inputs: [inputs["x"].T], [1])
        >>> run({"x": np.ones((2, 5))})[0].shape
        (2, 5)
    """
    if all(axis in (0, None) for axis in axes):
        return run
    return lambda inputs: turned(run(inputs), axes)


def turned(outputs: Sequence[Array], axes: Sequence[Axis]) -> list[Array]:
    """Return outputs with their samples on axis 0.

    Args:
        outputs: of one batch.
        axes: of each output, where the samples are.

    Example:
        >>> turned([np.ones((5, 2))], [1])[0].shape
        (2, 5)
    """
    return [_turned(*pair) for pair in zip(outputs, axes, strict=True)]


def _turned(output: Array, axis: Axis) -> Array:
    if axis is None or not is_array(output):
        return output
    return output[None] if axis == NO_AXIS else np.moveaxis(output, axis, 0)


def axis_before(axis: int, samples: Axis) -> int:
    """Return the axis of an output as the model has it, from its axis after the samples were put on axis 0.

    Args:
        axis: of the turned output, not that of the samples.
        samples: where the samples are in the model's output.

    Example:
        >>> [axis_before(axis, 1) for axis in (1, 2)], axis_before(1, NO_AXIS), axis_before(1, 0)
        ([0, 2], 0, 1)
    """
    if samples is None:
        return axis
    return axis - 1 if samples == NO_AXIS or axis <= samples else axis
