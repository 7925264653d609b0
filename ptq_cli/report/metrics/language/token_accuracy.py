"""Share of tokens, or of whole sequences, that a model chooses as it should."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Labels, SampleSums, Targets, require_rows
from ptq_cli.report.metrics.language.token_rows import IGNORED, require_counted, require_token_scores
from ptq_cli.report.metrics.recorder import Recorded


class TokenAccuracy(Recorded):
    """Share of positions at which the token with the highest score is the wanted one.

    Args:
        name: what the report calls it.
        targets: which tokens are wanted.

    Shapes:
        update: output [N, T, tokens]; labels [N, T], the wanted token of each position, or -100.

    Units:
        a share, 0 to 1.

    Edge case:
        A position whose label is -100 does not count; of equal scores the lowest token is chosen.

    Raises:
        MetricError: the output is not scores of tokens, no sample was counted, or no position counts.

    Source:
        Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", section 3.1, for masked
        tokens; Stanton et al. 2021, "Does knowledge distillation really work?", for the agreement of models.

    Example:
        >>> accuracy = TokenAccuracy("masked_top1", "marked tokens")
        >>> accuracy.update(np.eye(3, dtype=np.float32)[None], np.array([[0, 2, -100]]))
        >>> accuracy.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True

    def __init__(self, name: str, targets: Targets) -> None:
        super().__init__()
        self._name = name
        self.targets: Targets = targets

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        require_token_scores(output, self._name)
        counted = labels != IGNORED
        right = (np.argmax(output, axis=2) == labels) & counted
        self._recorder.add(np.stack([right.sum(axis=1), counted.sum(axis=1)], axis=1).astype(np.float64))

    def compute(self) -> float:
        """The share over all positions so far."""
        rows = require_rows(self._recorder, self._name)
        require_counted(rows, self._name)
        right, counted = rows.sum(axis=0)
        return float(right / counted)

    def resampling(self) -> SampleSums:
        """Each sequence's right positions, and how many count."""
        return SampleSums(self._recorder.rows, lambda sums: sums[..., 0] / sums[..., 1])


class ExactMatch(Recorded):
    """Share of sequences of which every position has the wanted token.

    Args:
        against: whose tokens are wanted: ``"float"`` for the float model's, ``"labels"`` for the data's.

    Shapes:
        update: output [N, T, tokens]; labels [N, T], the wanted token of each position, or -100.

    Units:
        a share, 0 to 1.

    Edge case:
        A position whose label is -100 does not count; a sequence without any other is right.

    Raises:
        MetricError: the output is not scores of tokens, or no sample was counted.
        ValueError: ``against`` is something else.

    Source:
        Rajpurkar et al. 2016, "SQuAD: 100,000+ questions for machine comprehension of text", section 6.1.

    Example:
        >>> match = ExactMatch()
        >>> scores = np.eye(3, dtype=np.float32)[[[0, 1, 2], [0, 1, 1]]]
        >>> match.update(scores, np.array([[0, 1, -100], [0, 2, 1]]))
        >>> match.compute()
        0.5
    """

    unit: ClassVar[Unit] = "share"
    higher_is_better: ClassVar[bool] = True

    def __init__(self, against: str = "float") -> None:
        super().__init__()
        if against not in ("float", "labels"):
            raise ValueError(f"against is '{against}', expected 'float' or 'labels'")
        self.targets: Targets = "float tokens" if against == "float" else "marked tokens"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        require_token_scores(output, "exact_match")
        right = (np.argmax(output, axis=2) == labels) | (labels == IGNORED)
        self._recorder.add(right.all(axis=1).astype(np.uint8)[:, None])

    def compute(self) -> float:
        """The share over all sequences so far."""
        rows = require_rows(self._recorder, "exact_match")
        return int(rows.sum()) / len(rows)

    def resampling(self) -> SampleSums:
        """Each sequence's 0 or 1, of which the value is the mean."""
        rows = self._recorder.rows.astype(np.float64)
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))
