"""Coefficient of determination."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Float64Array, Labels, SampleSums, Targets, require_rows
from ptq_cli.report.metrics.recorder import Recorded

MOST_COLUMNS = 256
"""With more targets the sums take more memory than a metric should: pixels of an image are not columns."""


class R2(Recorded):
    """``1 - sum (target - output)² / sum (target - mean target)²``, the mean over the target's columns.

    Shapes:
        update: output and labels [N, ...], both the same, at most 256 numbers a sample.

    Units:
        none; 1 is perfect, 0 what the mean of the targets would reach, below it is worse.

    Edge case:
        A column whose targets are all equal has 1 where the output is right, and 0 elsewhere.

    Raises:
        MetricError: there are more than 256 columns, or fewer than two samples.

    Source:
        Wright 1921, "Correlation and causation"; of several columns as scikit-learn's ``r2_score``.

    Example:
        >>> r2 = R2()
        >>> r2.update(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]))
        >>> round(r2.compute(), 4)
        0.7857
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "values"

    def update(self, output: Array, labels: Labels) -> None:
        """Keep one batch."""
        columns = output.reshape(len(output), -1).shape[1]
        if columns > MOST_COLUMNS:
            raise MetricError(
                f"r2 supports up to {MOST_COLUMNS} numbers per sample, but the output has {columns}",
                hint="mse and mae support any number",
            )
        both = [array.reshape(len(output), -1).astype(np.float64) for array in (labels, output)]
        self._recorder.add(np.concatenate(both, axis=1))

    def compute(self) -> float:
        """The mean over columns so far."""
        if len(self._recorder) < 2:
            raise MetricError(
                f"r2 needs two samples or more, got {len(require_rows(self._recorder, 'r2'))}",
                hint="evaluate on more data",
            )
        found = self.resampling()
        return float(found.of_sums(found.rows.sum(axis=0)))

    def resampling(self) -> SampleSums:
        """Each sample's targets, their squares, and squared errors, of whose sums the value is made."""
        rows = self._recorder.rows
        columns = rows.shape[1] // 2
        # From the mean, so that squares of large targets leave digits for their differences.
        targets = rows[:, :columns] - rows[:, :columns].mean(axis=0, keepdims=True)
        errors = rows[:, :columns] - rows[:, columns:]
        sums = np.concatenate([targets, targets * targets, errors * errors], axis=1)
        return SampleSums(sums, lambda found: _mean_r2(found, len(rows), columns))


def _mean_r2(sums: Float64Array, samples: int, columns: int) -> Float64Array:
    total, squares, residual = (sums[..., index * columns : (index + 1) * columns] for index in range(3))
    variation = squares - total * total / samples
    # Rounding leaves a trace of a variation that is none.
    constant = variation <= 1e-12 * np.maximum(squares, np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(constant, np.where(residual == 0, 1.0, 0.0), 1 - residual / variation)
    mean: Float64Array = found.mean(axis=-1)
    return mean
