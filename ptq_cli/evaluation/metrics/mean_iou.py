"""Mean intersection over union of segmentation masks."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array, after_unseen_flips
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.metrics.base import Labels, Recorded, SampleSums, Targets


class MeanIou(Recorded):
    """Mean over classes of ``intersection / union`` of the predicted and the labeled pixels of all samples.

    Args:
        ignore_index: the label of pixels that do not count, such as 255; None counts all.

    Shapes: update: output [N, classes, ...], labels [N, ...] within the classes.
    Units: none, 0 to 1.
    Edge case: A class that is neither labeled nor predicted is left out of the mean.

    Source: Jaccard 1912, "The distribution of the flora in the alpine zone"; Everingham et al. 2015, "The
        Pascal visual object classes challenge: a retrospective", section 3.4.

    Example:
        >>> iou = MeanIou()
        >>> iou.update(np.array([[[0.9, 0.8, 0.1], [0.1, 0.2, 0.9]]]), np.array([[0, 1, 1]]))
        >>> iou.compute()
        0.5
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "masks"
    name = "mean_iou"

    def __init__(self, ignore_index: int | None = None) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        classes = output.shape[1]
        predicted = np.argmax(output, axis=1).reshape(len(output), -1)
        rows = [
            _counts(one, other, classes, self.ignore_index)
            for one, other in zip(labels.reshape(len(output), -1), predicted, strict=True)
        ]
        self._add(np.array(rows, np.float64).reshape(-1, 2 * classes))

    def compute(self) -> float:
        """The mean over classes so far."""
        value = super().compute()
        if np.isnan(value):
            raise MetricError("mean_iou has no pixel to count", hint="every label is ignore_index")
        return value

    def resampling(self) -> SampleSums:
        """Each sample's intersections and unions, of whose sums the value is made."""
        rows = self.rows
        shares, present = _shares(rows.sum(axis=0))
        samples = (np.split(rows, 2, axis=1)[1] > 0).sum(axis=0)
        # A pixel that turns wrong leaves the intersection and joins the union.
        flipped = after_unseen_flips(shares[present], samples[present], len(rows), sides=2)
        return SampleSums(rows, self.of_sums, flipped=flipped)

    def of_sums(self, sums: Float64Array) -> Float64Array:
        """Return the mean from sums of each class's intersections, and of its unions."""
        shares, present = _shares(sums)
        with np.errstate(invalid="ignore"):
            found: Float64Array = shares.sum(axis=-1) / present.sum(axis=-1)
        return found


def _shares(sums: Float64Array) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
    """Return each class's intersection over union, and whether it has one."""
    both, either = np.split(sums, 2, axis=-1)
    present = either > 0
    return np.divide(both, either, out=np.zeros_like(both), where=present), present


def _counts(labels: Labels, predicted: Labels, classes: int, ignored: int | None) -> list[int]:
    """Return pixels in the intersection of each class, and in its union."""
    if ignored is not None:
        kept = labels != ignored
        labels, predicted = labels[kept], predicted[kept]
    both = np.bincount(labels[labels == predicted], minlength=classes)
    either = np.bincount(labels, minlength=classes) + np.bincount(predicted, minlength=classes) - both
    return [*both.tolist(), *either.tolist()]
