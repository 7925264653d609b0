"""Metrics of scores of classes: accuracy, top-k and F1 with labels; how two models agree."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.evaluation.bootstrap import Float64Array, after_unseen_flips, count_flips
from ptq_cli.evaluation.document.measurement import ClassValue, Unit
from ptq_cli.evaluation.interval import drop_interval
from ptq_cli.evaluation.metrics.base import Labels, Recorded, Reweighed, Rows, Targets, paired_rows

MIN_CLASSES = 2


def require_scores(output: Array, name: str, least: int = MIN_CLASSES) -> None:
    """Refuse an output that is not a table of class scores."""
    if output.ndim != 2:
        raise MetricError(
            f"{name} needs an output of shape [samples, classes], got {format_shape(output.shape)}",
            hint=f"leave the metric out, or give the output that has the class scores: {name}[OUTPUT]",
        )
    if output.shape[1] < least:
        raise MetricError(
            f"{name} needs an output with {least} classes or more, got {output.shape[1]}",
            hint="leave the metric out: it would be the same for every model",
        )


def predicted_class(output: Array, name: str) -> Labels:
    """Return the class with the highest score of each sample; of equal ones the lowest.

    Shapes: output [N, classes]; the result is [N].
    """
    require_scores(output, name)
    found: Labels = np.argmax(output, axis=1)
    return found


class ClassAccuracy(Recorded):
    """Mean over classes of the share of a class's samples whose highest score is that class.

    It is the balanced accuracy; the report has each class beside it.

    Shapes: update: output [N, classes], labels [N] within the classes.
    Units: a share, 0 to 1.
    Edge case: A class without a sample is left out of the mean.

    Source: Brodersen et al. 2010, "The balanced accuracy and its posterior distribution".

    Example:
        >>> accuracy = ClassAccuracy()
        >>> accuracy.update(np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]), np.array([0, 0, 1]))
        >>> accuracy.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"
    name = "class_accuracy"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        hits = predicted_class(output, self.name) == labels
        self._add(np.stack([labels, hits], axis=1).astype(np.int32))

    def compute(self) -> float:
        """The mean over the classes that had a sample so far."""
        rows = self.counted_rows()
        return _mean_share(rows, np.ones(len(rows)))

    def resampling(self) -> Reweighed:
        """The value, had some samples been drawn several times and others never."""
        rows = self.rows
        shares, seen = _shares(rows, np.ones(len(rows)))
        flipped = after_unseen_flips(shares[seen > 0], seen[seen > 0], len(rows))
        return Reweighed(len(rows), lambda weights: _mean_share(rows, weights), rows.size, flipped)

    def by_class(self, quantized: "ClassAccuracy", names: Sequence[str]) -> tuple[ClassValue, ...]:
        """Return each class that had a sample, with the flips between the float model (this) and another."""
        rows, others = self.rows, quantized.rows
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
    shares, seen = _shares(rows, weights)
    return float(np.mean(shares[seen > 0]))


def _shares(rows: Rows, weights: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return each class's share of right samples, and how often its samples count."""
    seen = np.bincount(rows[:, 0], weights).astype(np.float64)
    right = np.bincount(rows[:, 0], weights * rows[:, 1], minlength=len(seen))
    shares: Float64Array = np.divide(right, seen, out=np.zeros_like(right), where=seen > 0)
    return shares, seen


class _OfScores(Recorded):
    """A comparison of outputs that have an argmax to speak of."""

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Only float class scores, [samples, classes]."""
        is_table = output.ndim == 2 and output.dtype.kind == "f"
        return is_table and output.shape[0] == samples and output.shape[1] >= MIN_CLASSES


class Top1Agreement(_OfScores):
    """Share of samples with the same argmax in both outputs; ties go to the lower index in both.

    Shapes: update: [N, classes], both the same.
    Units: a share, 0 to 1.
    Edge case: Only for float outputs of rank 2 with two classes or more; others have no argmax to speak of.

    Source: Stanton et al. 2021, "Does knowledge distillation really work?" (average top-1 agreement).

    Example:
        >>> agreement = Top1Agreement()
        >>> agreement.update(np.array([[0.2, 0.8], [0.9, 0.1]]), np.array([[0.4, 0.6], [0.3, 0.7]]))
        >>> agreement.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True
    name = "top1_agreement"

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Count one batch."""
        agreed = np.argmax(float_output, axis=1) == np.argmax(quantized_output, axis=1)
        self._add(agreed.astype(np.uint8)[:, None])


# Rows of the float model that add up to 1 within this are probabilities already; others are logits.
SUM_TOLERANCE = 1e-3

# Below it a probability counts as this: a softmax in integers gives 0, of which there is no logarithm.
FLOOR = 2.0**-24


class KlDivergence(_OfScores):
    """Mean over samples of ``sum p log(p / q)``, with p the float model's softmax and q the quantized one's.

    Shapes: update: [N, classes], both the same.
    Units: nats, 0 or more.
    Edge case: Where the float model ends in a softmax, its rows are taken as they are, and the quantized
        model's are made to add up to 1; probabilities count as 2^-24 at least. Only for outputs that have an
        argmax to speak of, see ``Top1Agreement``.

    Source: Kullback and Leibler 1951, "On information and sufficiency".

    Example:
        >>> kl = KlDivergence()
        >>> kl.update(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]]))
        >>> round(kl.compute(), 4)
        0.1438
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False
    name = "kl_divergence"

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch's divergences."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            is_probability = (exact.min(axis=1) >= 0) & (np.abs(exact.sum(axis=1) - 1) <= SUM_TOLERANCE)
            logs = [
                np.where(is_probability[:, None], _log_of_probabilities(rows), _log_softmax(rows))
                for rows in (exact, noisy)
            ]
            found = np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=1)
            self._add(np.maximum(found, 0.0)[:, None])  # rounding may leave -1e-17


def _log_softmax(rows: Float64Array) -> Float64Array:
    shifted = rows - rows.max(axis=1, keepdims=True)
    found: Float64Array = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    return found


def _log_of_probabilities(rows: Float64Array) -> Float64Array:
    floored = np.maximum(rows, FLOOR)
    found: Float64Array = np.log(floored / floored.sum(axis=1, keepdims=True))
    return found


class TopK(Recorded):
    """Share of samples whose label is among the ``k`` highest classes.

    Of equal values the lower class index wins, as in numpy's argmax; so ``k = 1`` is the argmax.

    Shapes: update: output [N, classes], labels [N] within the classes.
    Units: a share, 0 to 1.
    Edge case: With fewer than k classes, or one, the share would be 1 for any model: an error.

    Source: Russakovsky et al. 2015, "ImageNet Large Scale Visual Recognition Challenge", section 4.1.

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
        self._k, self.name = k, f"top{k}"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        require_scores(output, self.name, max(self._k, MIN_CLASSES))
        # The rank needs no sort: how many classes are higher, and how many equal ones come first.
        own = np.take_along_axis(output, labels[:, None], axis=1)
        comes_first = np.arange(output.shape[1])[None, :] < labels[:, None]
        is_ahead = np.greater(output, own) | (np.equal(output, own) & comes_first)
        rank = np.sum(is_ahead, axis=1)
        self._add((rank < self._k).astype(np.uint8)[:, None])


class MacroF1(Recorded):
    """Mean over classes of ``2 tp / (2 tp + fp + fn)``, the class with the highest score being predicted.

    Shapes: update: output [N, classes], labels [N] within the classes.
    Units: none, 0 to 1.
    Edge case: A class that is neither a label nor predicted is left out of the mean.

    Source: van Rijsbergen 1979, "Information retrieval", chapter 7; the macro average as in Opitz and Burst
        2019, "Macro F1 and macro F1".

    Example:
        >>> f1 = MacroF1()
        >>> f1.update(np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), np.array([0, 1, 1]))
        >>> round(f1.compute(), 4)
        0.6667
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "classes"
    name = "f1"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        predicted = predicted_class(output, self.name)
        self._add(np.stack([labels, predicted], axis=1).astype(np.int32))

    def compute(self) -> float:
        """The mean over classes so far."""
        rows = self.counted_rows()
        return _macro_f1(rows, np.ones(len(rows)))

    def resampling(self) -> Reweighed:
        """The value, had some samples been drawn several times and others never."""
        rows = self.rows
        scores, counts = _scores_of_classes(rows, np.ones(len(rows)))
        samples = np.bincount(rows[:, 0], minlength=len(counts))
        flipped = after_unseen_flips(scores[counts > 0], samples[counts > 0], len(rows))
        return Reweighed(len(rows), lambda weights: _macro_f1(rows, weights), rows.size, flipped)


def _macro_f1(rows: Rows, weights: Float64Array) -> float:
    scores, counts = _scores_of_classes(rows, weights)
    return float(np.mean(scores[counts > 0]))


def _scores_of_classes(rows: Rows, weights: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return each class's F1, and how often it is a label or predicted."""
    labels, predicted = rows[:, 0], rows[:, 1]
    classes = int(rows.max()) + 1
    hits = np.where(labels == predicted, weights, 0.0)
    true_positives = np.bincount(labels, hits, classes)
    both = np.bincount(np.r_[labels, predicted], np.r_[weights, weights], classes).astype(np.float64)
    found: Float64Array = np.divide(2 * true_positives, both, out=np.zeros(classes), where=both > 0)
    return found, both
