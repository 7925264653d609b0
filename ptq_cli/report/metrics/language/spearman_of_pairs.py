"""Rank correlation of what a model says of pairs of texts with what people said of them."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.metrics.base import Labels, Targets
from ptq_cli.report.metrics.values.pair_spearman import PairSpearman


class SpearmanOfPairs(PairSpearman):
    """Spearman's correlation of the scores of pairs with their labels.

    A model that reads both texts of a pair at once returns its score, one number per sample. Of a model that
    returns embeddings, samples 0 and 1 are the first pair, 2 and 3 the second, and so on; both have the label
    of the pair, and its score is the cosine of both. An output [N, T, features] is averaged over the
    positions that the attention mask names, before.

    Shapes:
        update: output [N], [N, 1] or [N, features], labels [N].

    Units:
        none, -1 to 1.

    Edge case:
        Equal scores and equal labels have the mean of their ranks.

    Raises:
        LabelError: the two samples of a pair have different labels.
        MetricError: the number of samples is odd, there are fewer than two pairs, or all are alike.

    Source:
        Spearman 1904, as ``PairSpearman``; Cer et al. 2017, "SemEval-2017 task 1: semantic textual
        similarity".

    Example:
        >>> spearman = SpearmanOfPairs()
        >>> spearman.update(np.array([[0.9], [0.1], [0.5]]), np.array([5.0, 0.0, 2.5]))
        >>> spearman.compute()
        1.0
    """

    targets: ClassVar[Targets] = "pooled pairs"
    name: ClassVar[str] = "spearman_of_pairs"

    def update(self, output: Array, labels: Labels) -> None:
        """Count one batch."""
        if output.ndim == 2 and output.shape[1] > 1:
            super().update(output, labels)
        else:
            scores = output.reshape(len(output)).astype(np.float64)
            self._pairs.add(np.stack([scores, labels.astype(np.float64)], axis=1))
