"""Mean over samples of the cosine between the two models' outputs."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Float64Array, SampleSums, paired_rows, require_rows
from ptq_cli.report.metrics.recorder import Recorded


class Cosine(Recorded):
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

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Axis 0 must be the samples, or a mean over it would be of something else."""
        return output.ndim >= 1 and output.shape[0] == samples

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch's cosines."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            self._recorder.add(cosines(exact, noisy)[:, None])

    def compute(self) -> float:
        """The mean over all samples so far."""
        rows = require_rows(self._recorder, "cosine")
        return float(rows.sum() / len(rows))

    def resampling(self) -> SampleSums:
        """Each sample's cosine, of which the value is the mean."""
        rows = self._recorder.rows
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))


def cosines(a: Float64Array, b: Float64Array) -> Float64Array:
    """Return the cosine of each row of ``a`` with that of ``b``.

    Shapes:
        both [N, K]; the result is [N].

    Edge case:
        Two zero rows have 1, one zero row has 0.

    Source:
        Salton and McGill 1983, as ``Cosine``.

    Example:
        >>> cosines(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [1.0, 1.0]
    """
    a_square, b_square = np.sum(a * a, axis=1), np.sum(b * b, axis=1)
    is_zero = (a_square == 0) | (b_square == 0)
    # One root of the product gives exactly 1 for equal vectors; two roots may round to 1 - 2^-53.
    length = np.sqrt(np.where(is_zero, 1.0, a_square * b_square))
    found = np.clip(np.sum(a * b, axis=1) / length, -1.0, 1.0)
    value: Float64Array = np.where(is_zero, (a_square == b_square).astype(np.float64), found)
    return value
