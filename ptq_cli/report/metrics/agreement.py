"""Share of samples for which both models choose the same class."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.report.measurement import Unit
from ptq_cli.report.metrics.base import SampleSums

MIN_CLASSES = 2


class Top1Agreement:
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

    def __init__(self) -> None:
        self._agreed = bytearray()

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Only float [samples, classes]."""
        is_scores = output.ndim == 2 and output.dtype.kind == "f"
        return is_scores and output.shape[0] == samples and output.shape[1] >= MIN_CLASSES

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Count one batch."""
        agreed = np.argmax(float_output, axis=1) == np.argmax(quantized_output, axis=1)
        self._agreed += agreed.tobytes()

    def compute(self) -> float:
        """The share over all samples so far."""
        if not self._agreed:
            raise MetricError("top1_agreement has seen no sample", hint="evaluate on data that is not empty")
        return self._agreed.count(1) / len(self._agreed)

    def sample_sums(self) -> SampleSums:
        """Each sample's agreement, 0 or 1, of which the value is the mean."""
        rows = np.frombuffer(self._agreed, np.uint8).astype(np.float64)[:, None]
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))
