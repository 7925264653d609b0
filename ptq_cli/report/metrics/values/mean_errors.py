"""Mean squared and mean absolute error of targets that are numbers."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Float64Array, Labels, SampleSums, Targets, paired_rows, require_rows
from ptq_cli.report.metrics.recorder import Recorded


class MeanError(Recorded, ABC):
    """Mean over all elements of a function of ``output - target``; a subclass says which.

    Edge case:
        The mean is over elements, not samples: it is the same where samples differ in size.

    Raises:
        MetricError: no sample was counted.
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False
    targets: ClassVar[Targets] = "values"
    name: ClassVar[str]

    @staticmethod
    @abstractmethod
    def _errors(difference: Float64Array) -> Float64Array:
        """Return what each element counts."""

    def update(self, output: Array, labels: Labels) -> None:
        """Add one batch."""
        for found, wanted in paired_rows(output, labels):
            errors = self._errors(found - wanted)
            sizes = np.full(len(errors), float(errors.shape[1]))
            self._recorder.add(np.stack([np.sum(errors, axis=1), sizes], axis=1))

    def compute(self) -> float:
        """The mean over all elements so far."""
        total, count = require_rows(self._recorder, self.name).sum(axis=0)
        return float(total / count)

    def resampling(self) -> SampleSums:
        """Each sample's errors and elements, of whose sums the value is the ratio."""
        return SampleSums(self._recorder.rows, lambda sums: sums[..., 0] / sums[..., 1])


class MeanSquaredError(MeanError):
    """``mean (output - target)²``.

    Shapes:
        update: output and labels [N, ...], both the same.

    Units:
        the square of the target's.

    Edge case:
        0 for identical arrays.

    Raises:
        MetricError: no sample was counted.

    Source:
        Gauss 1821, "Theoria combinationis observationum".

    Example:
        >>> mse = MeanSquaredError()
        >>> mse.update(np.array([[1.0, 2.0]]), np.array([[1.0, 4.0]]))
        >>> mse.compute()
        2.0
    """

    name: ClassVar[str] = "mse"

    @staticmethod
    def _errors(difference: Float64Array) -> Float64Array:
        return difference * difference


class MeanAbsoluteError(MeanError):
    """``mean |output - target|``.

    Shapes:
        update: output and labels [N, ...], both the same.

    Units:
        the target's.

    Edge case:
        0 for identical arrays.

    Raises:
        MetricError: no sample was counted.

    Source:
        Willmott and Matsuura 2005, "Advantages of the mean absolute error (MAE) over the root mean square
        error".

    Example:
        >>> mae = MeanAbsoluteError()
        >>> mae.update(np.array([[1.0, 2.0]]), np.array([[1.0, 4.0]]))
        >>> mae.compute()
        1.0
    """

    name: ClassVar[str] = "mae"

    @staticmethod
    def _errors(difference: Float64Array) -> Float64Array:
        return np.abs(difference)
