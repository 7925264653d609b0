"""Mean over samples of the cosine between the two models' outputs."""

import math
from array import array
from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.report.measurement import Unit
from ptq_cli.report.metrics.base import Float64Array, SampleSums, paired_samples


class Cosine:
    """Mean over samples of ``float · quantized / (|float| |quantized|)``, outputs flattened.

    Shapes:
        update: [N, ...], both the same.

    Units:
        none, -1 to 1.

    Edge case:
        Two zero vectors have cosine 1 (they are equal), one zero vector has 0.

    Raises:
        MetricError: no sample was counted.

    Source:
        Salton and McGill 1983, "Introduction to modern information retrieval".

    Example:
        >>> cosine = Cosine()
        >>> cosine.update(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [2.0, 0.0]]))
        >>> cosine.compute()
        0.5
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sum = 0.0
        self._cosines = array("d")

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Axis 0 must be the samples, or a mean over it would be of something else."""
        return output.ndim >= 1 and output.shape[0] == samples

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch's cosines."""
        for float_sample, quantized_sample in paired_samples(float_output, quantized_output):
            self._cosines.append(_cosine(float_sample, quantized_sample))
            self._sum += self._cosines[-1]

    def compute(self) -> float:
        """The mean over all samples so far."""
        if not self._cosines:
            raise MetricError("cosine has seen no sample", hint="evaluate on data that is not empty")
        return self._sum / len(self._cosines)

    def sample_sums(self) -> SampleSums:
        """Each sample's cosine, of which the value is the mean."""
        rows = np.frombuffer(self._cosines, np.float64).astype(np.float64)[:, None]
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))


def _cosine(a: Float64Array, b: Float64Array) -> float:
    a_square, b_square = float(np.sum(a * a)), float(np.sum(b * b))
    if a_square == 0 or b_square == 0:
        return float(a_square == b_square)
    # One root of the product gives exactly 1 for equal vectors; two roots may round to 1 - 2^-53.
    value = float(np.sum(a * b)) / math.sqrt(a_square * b_square)
    return min(1.0, max(-1.0, value))
