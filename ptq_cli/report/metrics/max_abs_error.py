"""The largest difference between the two models' outputs."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.measurement import Unit
from ptq_cli.report.metrics.base import paired_samples


class MaxAbsError:
    """``max |float - quantized|`` over all elements of all samples.

    Shapes:
        update: any, both the same.

    Units:
        the output's own.

    Edge case:
        0 for identical outputs, and for outputs without elements.

    Source:
        Higham 2002, "Accuracy and stability of numerical algorithms", chapter 6 (the max norm).

    Example:
        >>> error = MaxAbsError()
        >>> error.update(np.array([[1.0, -3.0]]), np.array([[1.5, -1.0]]))
        >>> error.compute()
        2.0
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False

    def __init__(self) -> None:
        self._largest = 0.0

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:  # noqa: ARG004 - one interface
        """Any output has a largest difference."""
        return True

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Look at one batch."""
        for float_sample, quantized_sample in paired_samples(float_output, quantized_output):
            difference = np.abs(float_sample - quantized_sample)
            self._largest = max(self._largest, float(np.max(difference, initial=0.0)))

    def compute(self) -> float:
        """The largest difference so far."""
        return self._largest

    def sample_sums(self) -> None:
        """None: no drawing of samples tells how much larger one of those not drawn is."""
