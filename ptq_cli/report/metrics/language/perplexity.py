"""Perplexity of a language model."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Float64Array, Labels, SampleSums, Targets, require_rows
from ptq_cli.report.metrics.language.token_rows import (
    IGNORED,
    negative_log_likelihood,
    require_counted,
    require_token_scores,
)
from ptq_cli.report.metrics.recorder import Recorded


class Perplexity(Recorded):
    """``exp`` of the mean over tokens of ``-log p(token | tokens before it)``.

    Shapes:
        update: output [N, T, tokens]; labels [N, T], the token that follows each position, or -100.

    Units:
        none, 1 or more; the number of equally likely tokens that would be as hard to guess.

    Edge case:
        A position whose label is -100 does not count. The mean is over tokens, so that long sequences count
        more than short ones. An overflow is inf.

    Raises:
        MetricError: the output is not scores of tokens, no sample was counted, or no position counts.

    Source:
        Jelinek et al. 1977, "Perplexity: a measure of the difficulty of speech recognition tasks".

    Example:
        >>> perplexity = Perplexity()
        >>> perplexity.update(np.zeros((1, 3, 4), np.float32), np.array([[1, 2, -100]]))
        >>> round(perplexity.compute(), 6)
        4.0
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False
    targets: ClassVar[Targets] = "tokens"

    def update(self, output: Array, labels: Labels) -> None:
        """Add one batch, a sequence at a time."""
        require_token_scores(output, "perplexity")
        rows = np.empty((len(output), 2))
        for row, scores, tokens in zip(rows, output, labels, strict=True):
            counted = tokens != IGNORED
            row[:] = negative_log_likelihood(scores[counted], tokens[counted]).sum(), counted.sum()
        self._recorder.add(rows)

    def compute(self) -> float:
        """The value over all tokens so far."""
        rows = require_rows(self._recorder, "perplexity")
        require_counted(rows, "perplexity")
        return float(_of_sums(rows.sum(axis=0)))

    def resampling(self) -> SampleSums:
        """Each sequence's surprise and number of tokens."""
        return SampleSums(self._recorder.rows, _of_sums)


def _of_sums(sums: Float64Array) -> Float64Array:
    with np.errstate(over="ignore"):
        found: Float64Array = np.exp(sums[..., 0] / sums[..., 1])
    return found
