"""Models' outputs before a metric sees them: finite, of the same shapes, their samples on the first axis.

A recurrent network may return its steps first, [steps, samples, classes]; one that takes a single sample may
return anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape, is_array

# Where the samples of an output are; None where that is not known, and the output is left as it is.
Axis = int | None
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


OWN_MODEL = "compare a float model with the model quantized from it"


@dataclass(frozen=True)
class Place:
    """Where in the evaluation set a batch lies, to name a sample in a message."""

    batch: Batch
    first: int

    def sample(self, index: int) -> str:
        """Name the batch's sample ``index``: ``sample 33 (cat.png)``."""
        return f"sample {self.first + index} ({self.batch.names[index]})"

    def whole(self) -> str:
        """Name all samples of the batch: ``samples 32 to 63``."""
        return f"samples {self.first} to {self.first + self.batch.size - 1}"


def require_outputs(model: str, outputs: Sequence[Array], names: Sequence[str]) -> None:
    """Refuse another number of outputs than there are names, and outputs of texts."""
    if len(outputs) != len(names):
        raise MetricError(
            f"the {model} returned {len(outputs)} outputs, expected {len(names)}: {', '.join(names)}",
            hint=OWN_MODEL,
        )
    for name, output in zip(names, outputs, strict=True):
        found = f"has dtype {output.dtype}" if is_array(output) else "is a sequence"
        if not is_array(output) or output.dtype.kind not in "biuf":
            raise MetricError(
                f"the {model}'s output '{name}' {found}, expected numbers",
                hint="export the model so that its output is the scores",
            )


def require_same_shapes(
    float_outputs: Sequence[Array],
    outputs: Sequence[Array],
    names: Sequence[str],
    model: str,
    place: Place,
    varying: frozenset[str] = frozenset(),
) -> None:
    """Refuse outputs of another shape than the float model's, but for those whose size may vary."""
    for name, expected, found in zip(names, float_outputs, outputs, strict=True):
        if expected.shape != found.shape and (name not in varying or expected.ndim != found.ndim):
            raise MetricError(
                f"output '{name}' has shape {format_shape(expected.shape)} from the float model and "
                f"{format_shape(found.shape)} from the {model}, at {place.whole()}",
                hint=f"{OWN_MODEL}; if the size depends on the data, name another output: METRIC[OUTPUT]",
            )


def first_nonfinite(values: Array, place: Place) -> str:
    """Name the first sample of a batch for which a tensor holds NaN or Inf; empty if all of it is finite.

    Edge case: All samples of the batch are named if the tensor's first axis is not the samples.

    Example:
        >>> place = Place(Batch({"x": np.ones((2, 1))}, labels=None, names=("a.png", "cat.png")), first=6)
        >>> first_nonfinite(np.array([[1.0], [np.nan]]), place), first_nonfinite(np.ones((2, 1)), place)
        ('sample 7 (cat.png)', '')
    """
    finite = np.isfinite(values)
    if finite.all():
        return ""
    on_samples = values.ndim > 0 and values.shape[0] == place.batch.size
    return place.sample(int(np.argwhere(~finite)[0][0])) if on_samples else place.whole()


class NonfiniteSamples:
    """Counts samples for which a model's output holds NaN or Inf, and remembers the first."""

    def __init__(self) -> None:
        self._first = ""
        self._kind = ""
        self._bad = 0
        self._last: set[int] = set()
        self._at = -1

    def __bool__(self) -> bool:
        return bool(self._first)

    def look(self, model: str, outputs: Sequence[Array], names: Sequence[str], place: Place) -> None:
        """Look at one model's outputs of a batch; several models may look at the same batch in turn."""
        for name, output in zip(names, outputs, strict=True):
            finite = np.isfinite(output)
            if finite.all():
                continue
            on_samples = output.ndim >= 1 and output.shape[0] == place.batch.size
            bad = (
                ~finite.reshape(len(output), -1).all(axis=1)
                if on_samples
                else np.ones(place.batch.size, bool)
            )
            if not self._first:
                is_nan = np.isnan(output)
                self._kind = "NaN" if is_nan.any() else "Inf"
                wanted = is_nan if self._kind == "NaN" else ~finite
                where = place.sample(int(np.argwhere(wanted)[0][0])) if on_samples else place.whole()
                self._first = f"the {model}'s output '{name}' holds {self._kind} at {where}"
            self._count(np.flatnonzero(bad).tolist(), place.first)

    def refusal(self, seen: int) -> MetricError:
        """Error that names the first sample, and says how many there are."""
        have = "has" if self._bad == 1 else "have"
        return MetricError(
            f"{self._first}; {self._bad:,} of {seen:,} samples {have} NaN or Inf",
            hint="check the model's arithmetic and that sample; a metric of "
            f"{self._kind} would be meaningless",
        )

    def _count(self, samples: list[int], first: int) -> None:
        # A sample of which two outputs or models are bad is one sample.
        if first != self._at:
            self._at, self._last = first, set()
        self._bad += len(set(samples) - self._last)
        self._last |= set(samples)
