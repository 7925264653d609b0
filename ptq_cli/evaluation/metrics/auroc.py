"""Area under the ROC curve."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array, after_unseen_flips
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.metrics.base import Labels, Recorded, Reweighed, Rows, Targets


class Auroc(Recorded):
    """Share of pairs of a sample of a class and one of another, in which the first has the higher score.

    Of several classes it is the mean over them, each against the rest; of two, or of an output of one score,
    it is that of class 1. It needs every score: 4 bytes for each class and sample are kept.

    Shapes: update: output [N, classes], [N, 1] or [N]; labels [N] within the classes, or 0 and 1.
    Units: none, 0 to 1; 0.5 is chance.
    Edge case: Equal scores count half. Scores that are not all from 0 to 1 are logits, and a softmax makes
        them comparable between samples. A class without a sample, or with all, is left out of the mean.

    Raises: MetricError: no sample was counted, or all are of one class.

    Source: Hanley and McNeil 1982, "The meaning and use of the area under a receiver operating characteristic
        (ROC) curve"; Fawcett 2006, "An introduction to ROC analysis", section 9, for several classes.

    Example:
        >>> auroc = Auroc()
        >>> auroc.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
        >>> auroc.compute()
        0.75
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"
    name = "auroc"

    def update(self, output: Array, labels: Labels) -> None:
        """Keep one batch."""
        if output.ndim > 2:
            raise MetricError(
                f"auroc needs an output of shape [samples, classes] or [samples], got rank {output.ndim}",
                hint="leave the metric out, or give another output: auroc[OUTPUT]",
            )
        scores = output.reshape(len(output), -1).astype(np.float32)
        # Beside the scores, which are float32: that holds every class index below 2^24.
        self._add(np.column_stack([scores, labels.astype(np.float32)]))

    def compute(self) -> float:
        """The mean over classes so far."""
        rows = self.counted_rows()
        value = _mean_area(self._curves(), np.ones(len(rows)))
        if np.isnan(value):
            raise MetricError(
                "auroc needs samples of two classes, but all are of one",
                hint="evaluate on samples of several classes",
            )
        return value

    def resampling(self) -> Reweighed:
        """The value, had some samples been drawn several times and others never."""
        curves, count = self._curves(), self.count
        areas = np.array([curve.area(np.ones(count)) for curve in curves])
        # A flip on either side costs pairs; one side alone, of the half of the samples or less, costs once.
        fewest = np.array([2 * curve.fewest for curve in curves])
        flipped = after_unseen_flips(areas, fewest, count, sides=2)
        cost = 4 * count * len(curves)
        return Reweighed(count, lambda weights: _mean_area(curves, weights), cost, flipped)

    def _curves(self) -> "list[_Curve]":
        rows = self.rows
        scores, labels = _comparable(rows[:, :-1]), rows[:, -1]
        classes = range(scores.shape[1]) if scores.shape[1] > 2 else [scores.shape[1] - 1]
        positives = [labels == (index if scores.shape[1] > 1 else 1) for index in classes]
        found = zip(classes, positives, strict=True)
        return [_Curve(scores[:, index], own) for index, own in found if 0 < own.sum() < len(own)]


class _Curve:
    """Samples in the order of one class's score, in groups of equal ones."""

    def __init__(self, scores: Rows, positive: Rows) -> None:
        self._order = np.argsort(scores, kind="stable")
        ordered = scores[self._order]
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self._has_ties = len(self._starts) < len(ordered)
        self._positive = positive[self._order].astype(np.float64)
        self.fewest = min(int(positive.sum()), int(len(positive) - positive.sum()))
        """Samples of the class, or of the others if those are fewer."""

    def area(self, weights: Float64Array) -> float:
        """Return the area where each sample counts so often; NaN where one side has none."""
        ordered = weights[self._order]
        positive = ordered * self._positive
        negative = ordered - positive
        if self._has_ties:
            positive, negative = (np.add.reduceat(side, self._starts) for side in (positive, negative))
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative / 2
        return float(positive @ below / pairs) if pairs > 0 else np.nan


def _mean_area(curves: list[_Curve], weights: Float64Array) -> float:
    areas = np.array([curve.area(weights) for curve in curves])
    known = areas[~np.isnan(areas)]
    return float(known.mean()) if known.size else np.nan


def _comparable(scores: Rows) -> Rows:
    """Return scores that can be compared between samples: logits of several classes become probabilities."""
    if scores.shape[1] < 2 or (scores.min() >= 0 and scores.max() <= 1):
        return scores
    exponents = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    found: Rows = exponents / exponents.sum(axis=1, keepdims=True)
    return found
