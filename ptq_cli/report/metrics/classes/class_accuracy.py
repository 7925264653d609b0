"""Accuracy of each class, and their mean."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import ClassValue, Unit
from ptq_cli.report.intervals.paired_scores import count_flips
from ptq_cli.report.intervals.score_interval import drop_interval
from ptq_cli.report.metrics.base import Float64Array, Labels, Reweighed, Targets, require_rows
from ptq_cli.report.metrics.classes.class_scores import predicted_class
from ptq_cli.report.metrics.recorder import Recorded, Rows


class ClassAccuracy(Recorded):
    """Mean over classes of the share of a class's samples whose highest score is that class.

    It is the balanced accuracy; the report has each class beside it.

    Shapes:
        update: output [N, classes], labels [N] within the classes.

    Units:
        a share, 0 to 1.

    Edge case:
        A class without a sample is left out of the mean.

    Raises:
        MetricError: the output has fewer than two classes, or no sample was counted.

    Source:
        Brodersen et al. 2010, "The balanced accuracy and its posterior distribution".

    Example:
        >>> accuracy = ClassAccuracy()
        >>> accuracy.update(np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]), np.array([0, 0, 1]))
        >>> accuracy.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        hits = predicted_class(output, "class_accuracy") == labels
        self._recorder.add(np.stack([labels, hits], axis=1).astype(np.int32))

    def compute(self) -> float:
        """The mean over the classes that had a sample so far."""
        rows = require_rows(self._recorder, "class_accuracy")
        return _mean_share(rows, np.ones(len(rows)))

    def resampling(self) -> Reweighed:
        """The value, had some samples been drawn several times and others never."""
        rows = self._recorder.rows
        return Reweighed(len(rows), lambda weights: _mean_share(rows, weights), rows.size)

    def by_class(self, quantized: "ClassAccuracy", names: Sequence[str]) -> tuple[ClassValue, ...]:
        """Return each class that had a sample, with the flips between the float model (this) and another.

        Args:
            quantized: the same metric of the quantized model, on the same samples.
            names: of the classes, by label; empty if nobody knows.
        """
        rows, others = self._recorder.rows, quantized._recorder.rows
        found = []
        for label in np.unique(rows[:, 0]):
            own = rows[:, 0] == label
            before, after = (item[own, 1].astype(np.float64) for item in (rows, others))
            flips = count_flips(before, after)
            name = names[label] if label < len(names) else ""
            found.append(
                ClassValue(
                    label=int(label),
                    name=name,
                    float_value=float(before.mean()),
                    quantized_value=float(after.mean()),
                    flips=flips,
                    drop_interval=drop_interval(flips),
                )
            )
        return tuple(found)


def _mean_share(rows: Rows, weights: Float64Array) -> float:
    seen = np.bincount(rows[:, 0], weights)
    right = np.bincount(rows[:, 0], weights * rows[:, 1], minlength=len(seen))
    return float(np.mean(right[seen > 0] / seen[seen > 0]))
