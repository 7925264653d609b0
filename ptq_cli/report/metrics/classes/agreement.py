"""Share of samples for which both models choose the same class."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import SampleSums, require_rows
from ptq_cli.report.metrics.classes.class_scores import MIN_CLASSES
from ptq_cli.report.metrics.recorder import Recorded


def is_scores(output: Array, samples: int) -> bool:
    """Return whether an output of a batch is float class scores, [samples, classes].

    Example:
        >>> is_scores(np.zeros((4, 10)), 4), is_scores(np.zeros((4, 1)), 4)
        (True, False)
    """
    is_table = output.ndim == 2 and output.dtype.kind == "f"
    return is_table and output.shape[0] == samples and output.shape[1] >= MIN_CLASSES


class Top1Agreement(Recorded):
    """Share of samples with the same argmax in both outputs; ties go to the lower index in both.

    Shapes:
        update: [N, classes], both the same.

    Units:
        a share, 0 to 1.

    Edge case:
        Only for float outputs of rank 2 with two classes or more; others have no argmax to speak of.

    Raises:
        MetricError: no sample was counted.

    Source:
        Stanton et al. 2021, "Does knowledge distillation really work?" (average top-1 agreement).

    Example:
        >>> agreement = Top1Agreement()
        >>> agreement.update(np.array([[0.2, 0.8], [0.9, 0.1]]), np.array([[0.4, 0.6], [0.3, 0.7]]))
        >>> agreement.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Only float [samples, classes]."""
        return is_scores(output, samples)

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Count one batch."""
        agreed = np.argmax(float_output, axis=1) == np.argmax(quantized_output, axis=1)
        self._recorder.add(agreed.astype(np.uint8)[:, None])

    def compute(self) -> float:
        """The share over all samples so far."""
        rows = require_rows(self._recorder, "top1_agreement")
        return int(rows.sum()) / len(rows)

    def resampling(self) -> SampleSums:
        """Each sample's agreement, 0 or 1, of which the value is the mean."""
        rows = self._recorder.rows.astype(np.float64)
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))
