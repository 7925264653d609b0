"""What every metric looks like, and how samples are walked so that batches cannot change a sum."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.intervals.bootstrap import Float64Array, OfSums
from ptq_cli.report.metrics.recorder import Recorder, Rows, State

__all__ = [
    "Float64Array",
    "LabelMetric",
    "Labels",
    "PairMetric",
    "Resampling",
    "Reweighed",
    "SampleSums",
    "Targets",
    "paired_rows",
    "require_rows",
]

Labels = npt.NDArray[Any]

Targets = Literal[
    "classes",
    "values",
    "masks",
    "pairs",
    "any",
    "tokens",
    "marked tokens",
    "float tokens",
    "float embeddings",
    "pooled pairs",
]
"""What the labels must be: class indices [N] of scores [N, classes], numbers of the output's own shape,
class indices [N, ...] of scores [N, classes, ...], one number for each two samples, or whatever the metric
takes. Of scores [N, T, tokens]: the token after each position, the right token of some positions, or the
token that the float model chooses; of embeddings those of the float model, or one number for each pair."""

COMPARED = ("float tokens", "float embeddings")
"""Targets that the float model gives, so that the metric has one value."""

BLOCK = 2**17
"""Elements that are converted to float64 at a time: 1 MiB, which caches hold."""


@dataclass(frozen=True)
class SampleSums:
    """A metric as a function of sums over samples, from which its uncertainty can be told.

    This is what grows with the evaluation set: a byte for each sample and share, 8 for a cosine, 16 for an
    SQNR; 50,000 samples of a classifier take 2 MB.

    Attributes:
        rows: [N, k], what each sample adds to the sums, in the order of the set.
        of_sums: the metric's value from such sums.
        blocks: whether a row is of a block of samples, not of one.
    """

    rows: Float64Array
    of_sums: OfSums
    blocks: bool = False


@dataclass(frozen=True)
class Reweighed:
    """A metric as a function of how often each sample counts.

    Attributes:
        units: how many samples, or pairs of them, there are.
        of_weights: the value, from [units] counts.
        cost: elements that one evaluation reads, which limits how many there can be.
    """

    units: int
    of_weights: Callable[[Float64Array], float]
    cost: int


Resampling = SampleSums | Reweighed | str
"""How the uncertainty is told; a text says why it cannot be."""


class StreamingMetric(Protocol):
    """What every metric does with what each sample added."""

    def compute(self) -> float:
        """The value over all samples so far."""
        ...

    def resampling(self) -> Resampling:
        """How the uncertainty is told."""
        ...

    def state(self) -> State:
        """What a checkpoint holds."""
        ...

    def load_state(self, state: State) -> None:
        """Go on from what a checkpoint held."""
        ...

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set: others have those before."""
        ...

    def join(self, states: Sequence[State]) -> None:
        """Go on from the states of metrics that have seen a part each, in the order of the set."""
        ...


class LabelMetric(StreamingMetric, Protocol):
    """Compares one model's output with labels."""

    @property
    def unit(self) -> Unit:
        """Of the value."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """False for an error."""
        ...

    @property
    def targets(self) -> Targets:
        """What the labels must be."""
        ...

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch: the first axis of both is the sample."""
        ...


class PairMetric(StreamingMetric, Protocol):
    """Compares the quantized model's output with the float model's; needs no labels."""

    unit: ClassVar[Unit]
    higher_is_better: ClassVar[bool]

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Whether the metric has a meaning for this output of a batch of ``samples``."""
        ...

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Count one batch; both arrays have one shape."""
        ...


def require_rows(recorder: Recorder, name: str) -> Rows:
    """Return the rows of a metric.

    Raises:
        MetricError: there is none.

    Example:
        >>> require_rows(Recorder(), "cosine")
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.MetricError: PTQ-METRIC-001: cosine has seen no sample
        hint: evaluate on data that has samples
    """
    if not len(recorder):
        raise MetricError(f"{name} has seen no sample", hint="evaluate on data that has samples")
    return recorder.rows


def paired_rows(float_output: Array, quantized_output: Array) -> Iterator[tuple[Float64Array, Float64Array]]:
    """Yield both outputs as rows in float64, a sample each, a few samples at a time.

    Not all of a batch at once: a float64 copy of segmentation maps would double its memory. What is summed
    along a row does not depend on how the samples were batched, to the last bit.

    Shapes:
        float_output, quantized_output: [N, ...]; each yielded array is [n, elements of a sample].

    Edge case:
        A scalar output is one sample. Nothing is yielded for an output without samples.

    Example:
        >>> [f.tolist() for f, _ in paired_rows(np.ones((2, 1, 2)), np.zeros((2, 1, 2)))]
        [[[1.0, 1.0], [1.0, 1.0]]]
    """
    flat = [np.atleast_1d(output) for output in (float_output, quantized_output)]
    first, second = (output.reshape(len(output), -1 if output.size else 0) for output in flat)
    together = max(1, BLOCK // max(1, first.shape[1]))
    for start in range(0, len(first), together):
        part = slice(start, start + together)
        yield first[part].astype(np.float64), second[part].astype(np.float64)
