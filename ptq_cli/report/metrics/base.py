"""What every metric looks like, and how samples are walked so that batches cannot change a sum."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ptq_cli.core.tensors import Array
from ptq_cli.report.intervals.bootstrap import Float64Array, OfSums
from ptq_cli.report.measurement import Unit

__all__ = ["Float64Array", "LabelMetric", "Labels", "PairMetric", "SampleSums", "paired_samples"]

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleSums:
    """A metric as a function of sums over samples, from which its uncertainty can be told.

    This is what grows with the evaluation set: a byte for each sample and share, 8 for a cosine, 16 for an
    SQNR; 50,000 samples of a classifier take 1.4 MB.

    Attributes:
        rows: [N, k], what each sample adds to the sums, in the order of the set.
        of_sums: the metric's value from such sums.
    """

    rows: Float64Array
    of_sums: OfSums


class LabelMetric(Protocol):
    """Compares one model's output with labels."""

    unit: ClassVar[Unit]
    higher_is_better: ClassVar[bool]

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch: ``output`` is [N, classes], ``labels`` [N]."""
        ...

    def compute(self) -> float:
        """The value over all samples so far."""
        ...

    def sample_sums(self) -> SampleSums | None:
        """What each sample added so far; None if the value is no function of such sums, as a maximum."""
        ...


class PairMetric(Protocol):
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

    def compute(self) -> float:
        """The value over all samples so far."""
        ...

    def sample_sums(self) -> SampleSums | None:
        """What each sample added so far; None if the value is no function of such sums, as a maximum."""
        ...


def paired_samples(
    float_output: Array, quantized_output: Array
) -> Iterator[tuple[Float64Array, Float64Array]]:
    """Yield both outputs of each sample, flat and in float64.

    One sample at a time: a float64 copy of a whole batch of segmentation maps would double its memory, and
    sums over samples, added in order, do not depend on how the samples were batched, to the last bit.

    Shapes:
        float_output, quantized_output: [N, ...]; each yielded array has the size of one sample.

    Edge case:
        A scalar output is one sample.

    Example:
        >>> [f.tolist() for f, _ in paired_samples(np.ones((2, 1, 2)), np.zeros((2, 1, 2)))]
        [[1.0, 1.0], [1.0, 1.0]]
    """
    pairs = zip(np.atleast_1d(float_output), np.atleast_1d(quantized_output), strict=True)
    for float_sample, quantized_sample in pairs:
        yield np.ravel(float_sample).astype(np.float64), np.ravel(quantized_sample).astype(np.float64)
