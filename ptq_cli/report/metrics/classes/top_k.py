"""Top-k accuracy: the share of samples whose label is among the k highest classes."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Labels, SampleSums, Targets, require_rows
from ptq_cli.report.metrics.classes.class_scores import MIN_CLASSES, require_scores
from ptq_cli.report.metrics.recorder import Recorded


class TopK(Recorded):
    """Share of samples whose label is among the ``k`` highest classes.

    Of equal values the lower class index wins, as in numpy's argmax; so ``k = 1`` is the argmax.

    Shapes:
        update: output [N, classes], labels [N] within the classes.

    Units:
        a share, 0 to 1.

    Edge case:
        With fewer than k classes, or one, the share would be 1 for any model: an error.

    Raises:
        MetricError: the output is not [N, classes] with enough classes, or no sample was counted.

    Source:
        Russakovsky et al. 2015, "ImageNet Large Scale Visual Recognition Challenge", section 4.1.

    Example:
        >>> top1 = TopK(1)
        >>> top1.update(np.array([[0.1, 0.9], [0.5, 0.5]]), np.array([1, 1]))
        >>> top1.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"

    def __init__(self, k: int) -> None:
        super().__init__()
        self._k = k

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        require_scores(output, f"top{self._k}", max(self._k, MIN_CLASSES))
        # The rank needs no sort: how many classes are higher, and how many equal ones come first.
        own = np.take_along_axis(output, labels[:, None], axis=1)
        comes_first = np.arange(output.shape[1])[None, :] < labels[:, None]
        is_ahead = np.greater(output, own) | (np.equal(output, own) & comes_first)
        rank = np.sum(is_ahead, axis=1)
        self._recorder.add((rank < self._k).astype(np.uint8)[:, None])

    def compute(self) -> float:
        """The share over all samples so far."""
        rows = require_rows(self._recorder, f"top{self._k}")
        return int(rows.sum()) / len(rows)

    def resampling(self) -> SampleSums:
        """Each sample's hit, 0 or 1, of which the value is the mean."""
        rows = self._recorder.rows.astype(np.float64)
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))
