"""F1, the mean over classes."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Float64Array, Labels, Reweighed, Targets, require_rows
from ptq_cli.report.metrics.classes.class_scores import predicted_class
from ptq_cli.report.metrics.recorder import Recorded, Rows


class MacroF1(Recorded):
    """Mean over classes of ``2 tp / (2 tp + fp + fn)``, the class with the highest score being predicted.

    Shapes:
        update: output [N, classes], labels [N] within the classes.

    Units:
        none, 0 to 1.

    Edge case:
        A class that is neither a label nor predicted is left out of the mean.

    Raises:
        MetricError: the output has fewer than two classes, or no sample was counted.

    Source:
        van Rijsbergen 1979, "Information retrieval", chapter 7; the macro average as in Opitz and Burst 2019,
        "Macro F1 and macro F1".

    Example:
        >>> f1 = MacroF1()
        >>> f1.update(np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), np.array([0, 1, 1]))
        >>> round(f1.compute(), 4)
        0.6667
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        predicted = predicted_class(output, "f1")
        self._recorder.add(np.stack([labels, predicted], axis=1).astype(np.int32))

    def compute(self) -> float:
        """The mean over classes so far."""
        rows = require_rows(self._recorder, "f1")
        return _macro_f1(rows, np.ones(len(rows)))

    def resampling(self) -> Reweighed:
        """The value, had some samples been drawn several times and others never."""
        rows = self._recorder.rows
        return Reweighed(len(rows), lambda weights: _macro_f1(rows, weights), rows.size)


def _macro_f1(rows: Rows, weights: Float64Array) -> float:
    labels, predicted = rows[:, 0], rows[:, 1]
    classes = int(rows.max()) + 1
    hits = np.where(labels == predicted, weights, 0.0)
    true_positives = np.bincount(labels, hits, classes)
    both = np.bincount(labels, weights, classes) + np.bincount(predicted, weights, classes)
    return float(np.mean(2 * true_positives[both > 0] / both[both > 0]))
