"""Top-k accuracy: the share of samples whose label is among the k highest classes."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.report.measurement import Unit
from ptq_cli.report.metrics.base import Labels, SampleSums

MIN_CLASSES = 2


class TopK:
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

    def __init__(self, k: int) -> None:
        self._k = k
        self._hits = bytearray()

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        self._require_classes(output)
        # The rank needs no sort: how many classes are higher, and how many equal ones come first.
        own = np.take_along_axis(output, labels[:, None], axis=1)
        comes_first = np.arange(output.shape[1])[None, :] < labels[:, None]
        is_ahead = np.greater(output, own) | (np.equal(output, own) & comes_first)
        rank = np.sum(is_ahead, axis=1)
        self._hits += (rank < self._k).tobytes()

    def compute(self) -> float:
        """The share over all samples so far."""
        if not self._hits:
            raise MetricError(f"top{self._k} has seen no sample", hint="evaluate on data that is not empty")
        return self._hits.count(1) / len(self._hits)

    def sample_sums(self) -> SampleSums:
        """Each sample's hit, 0 or 1, of which the value is the mean."""
        rows = np.frombuffer(self._hits, np.uint8).astype(np.float64)[:, None]
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))

    def _require_classes(self, output: Array) -> None:
        wanted = max(self._k, MIN_CLASSES)
        if output.ndim != 2:
            raise MetricError(
                f"top{self._k} needs an output of shape [samples, classes], got {format_shape(output.shape)}",
                hint="leave the metric out, or put the class scores on the first output",
            )
        if output.shape[1] < wanted:
            raise MetricError(
                f"top{self._k} needs an output with {wanted} classes or more, got {output.shape[1]}",
                hint="leave the metric out: every model would reach the same value",
            )
