"""How alike outputs are: the cosine of the two models', and Spearman's correlation of pairs."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ptq_cli.core.errors import LabelError, MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array
from ptq_cli.evaluation.document.measurement import Unit
from ptq_cli.evaluation.metrics.base import Labels, Recorded, Reweighed, Rows, State, Targets, paired_rows


class Cosine(Recorded):
    """Mean over samples of ``float · quantized / (|float| |quantized|)``, outputs flattened.

    Shapes: update: [N, ...], both the same.
    Units: none, -1 to 1.
    Edge case: Two zero vectors have cosine 1 (they are equal), one zero vector has 0.

    Source: Salton and McGill 1983, "Introduction to modern information retrieval".

    Example:
        >>> cosine = Cosine()
        >>> cosine.update(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [2.0, 0.0]]))
        >>> cosine.compute()
        0.5
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    name = "cosine"

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Axis 0 must be the samples, or a mean over it would be of something else."""
        return output.ndim >= 1 and output.shape[0] == samples

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch's cosines."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            self._add(cosines(exact, noisy)[:, None])


def cosines(a: Float64Array, b: Float64Array) -> Float64Array:
    """Return the cosine of each row of ``a`` with that of ``b``.

    Shapes: both [N, K]; the result is [N].
    Edge case: Two zero rows have 1, one zero row has 0.

    Source: Salton and McGill 1983, as ``Cosine``.

    Example:
        >>> cosines(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [1.0, 1.0]
    """
    a_square, b_square = np.sum(a * a, axis=1), np.sum(b * b, axis=1)
    is_zero = (a_square == 0) | (b_square == 0)
    # One root of the product gives exactly 1 for equal vectors; two roots may round to 1 - 2^-53.
    length = np.sqrt(np.where(is_zero, 1.0, a_square * b_square))
    found = np.clip(np.sum(a * b, axis=1) / length, -1.0, 1.0)
    value: Float64Array = np.where(is_zero, (a_square == b_square).astype(np.float64), found)
    return value


class Spearman(Recorded):
    """Spearman's correlation of the scores of pairs with their labels.

    A model that reads both members of a pair at once returns its score, one number per sample. Of a model
    that returns embeddings, samples 0 and 1 of the set are the first pair, 2 and 3 the second, and so on,
    wherever a batch ends; both have the label of the pair, and its score is their cosine. An output
    [N, T, features] is averaged over the positions that the attention mask names, before.

    Shapes: update: output [N], [N, 1] or [N, features], labels [N].
    Units: none, -1 to 1.
    Edge case: Equal scores and equal labels have the mean of their ranks.

    Raises:
        LabelError: the two samples of a pair have different labels.
        MetricError: the number of samples is odd, there are fewer than two pairs, or all are alike.

    Source: Spearman 1904, "The proof and measurement of association between two things"; for pairs of
        sentences Cer et al. 2017, "SemEval-2017 task 1", and Reimers and Gurevych 2019, "Sentence-BERT",
        section 4.

    Example:
        >>> spearman = Spearman()
        >>> embeddings = np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> spearman.update(embeddings, np.array([5.0, 5.0, 0.0, 0.0, 2.5, 2.5]))
        >>> spearman.compute()
        1.0
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = True
    targets: ClassVar[Targets] = "pairs"
    name = "spearman"

    def __init__(self) -> None:
        super().__init__()
        self._before = 0
        """Pairs of the set before the first one that comes."""
        self._waiting: list[tuple[Array, Labels]] = []

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch of scores or embeddings."""
        if output.ndim > 1 and output.shape[1] > 1:
            self._pair(output, labels)
        else:
            scores = output.reshape(len(output)).astype(np.float64)
            self._add(np.stack([scores, labels.astype(np.float64)], axis=1))

    def _pair(self, output: Array, labels: Labels) -> None:
        """Pair the samples of one batch, and one that waits from the batch before."""
        if self._waiting:
            output, labels = (
                np.concatenate(parts) for parts in zip(self._waiting.pop(), (output, labels), strict=True)
            )
        whole = len(output) // 2 * 2
        if whole < len(output):
            self._waiting.append((output[whole:].copy(), labels[whole:].copy()))
        first, second = labels[:whole:2], labels[1:whole:2]
        if (first != second).any():
            index = int(np.argmax(first != second))
            pair = self._before + self.count + index
            raise LabelError(
                f"samples {2 * pair} and {2 * pair + 1} are a pair, but have the labels "
                f"{first[index]} and {second[index]}",
                hint=f"{self.name} reads samples in pairs, and both samples of a pair have the pair's label",
            )
        start = 0
        for one, other in paired_rows(output[:whole:2], output[1:whole:2]):
            scores = first[start : start + len(one)].astype(np.float64)
            self._add(np.stack([cosines(one, other), scores], axis=1))
            start += len(one)

    def compute(self) -> float:
        """The correlation over all pairs so far."""
        if self._waiting:
            raise MetricError(
                f"{self.name} needs pairs, but there are {2 * self.count + 1} samples",
                hint="samples 0 and 1 are a pair, samples 2 and 3 the next",
            )
        rows = self.counted_rows()
        value = _Ranks.of(rows).correlation(np.ones(len(rows)))
        if np.isnan(value):
            raise MetricError(
                f"{self.name} has no value for {len(rows)} pairs: all similarities or all labels are equal",
                hint="evaluate on pairs that differ in similarity",
            )
        return value

    def resampling(self) -> Reweighed:
        """The value, had some pairs been drawn several times and others never."""
        rows = self.rows
        return Reweighed(len(rows), _Ranks.of(rows).correlation, 8 * len(rows), rows=rows)

    def state(self) -> State:
        """Return what a checkpoint holds."""
        state = super().state()
        if self._waiting:
            state |= {"waiting": self._waiting[0][0], "waiting_label": self._waiting[0][1]}
        return state

    def start_at(self, sample: int) -> None:
        """Take the first sample that comes for this one of the set.

        Raises: MetricError: it is the second one of a pair.
        """
        if sample % 2:
            raise MetricError(
                f"{self.name} cannot be measured in parts: samples {sample - 1} and {sample} "
                "are a pair, but in different parts",
                hint="pass an even --set data.batch_size, or evaluate all samples in one process",
            )
        self._before = sample // 2

    def join(self, states: Sequence[State]) -> None:
        """Go on from the pairs of all parts of a set, in their order; a sample may wait in the last one."""
        super().join(states)
        last = states[-1]
        self._waiting = [(last["waiting"], last["waiting_label"])] if "waiting" in last else []


class _Ranks:
    """Both columns in order, with groups of equal values."""

    def __init__(self, columns: list[tuple[Rows, Rows, Rows]]) -> None:
        self._columns = columns

    @classmethod
    def of(cls, rows: Rows) -> "_Ranks":
        columns: list[tuple[Rows, Rows, Rows]] = []
        for column in rows.T:
            order = np.argsort(column, kind="stable")
            ordered = column[order]
            is_start = np.r_[True, ordered[1:] != ordered[:-1]]
            group = np.empty(len(order), np.int64)
            group[order] = np.cumsum(is_start) - 1
            columns.append((order, np.flatnonzero(is_start), group))
        return cls(columns)

    def correlation(self, weights: Float64Array) -> float:
        """Return the correlation of the ranks, where each pair counts so often; NaN where one is constant."""
        ranks = []
        for order, starts, group in self._columns:
            sizes = np.add.reduceat(weights[order], starts)
            ranks.append((np.cumsum(sizes) - sizes / 2)[group])
        total = weights.sum()
        centered = [rank - (weights @ rank) / total for rank in ranks]
        squares = [float(weights @ (item * item)) for item in centered]
        product = float(weights @ (centered[0] * centered[1]))
        return product / float(np.sqrt(squares[0] * squares[1])) if min(squares) > 0 else np.nan
