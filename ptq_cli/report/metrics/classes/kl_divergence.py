"""How far the quantized model's class probabilities are from the float model's."""

from typing import ClassVar

import numpy as np

from ptq_cli.core.tensors import Array
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.metrics.base import Float64Array, SampleSums, paired_rows, require_rows
from ptq_cli.report.metrics.classes.agreement import is_scores
from ptq_cli.report.metrics.recorder import Recorded

SUM_TOLERANCE = 1e-3
"""Rows of the float model that add up to 1 within this are probabilities already; others are logits."""

FLOOR = 2.0**-24
"""Below it a probability counts as this: a softmax in integers gives 0, of which there is no logarithm."""


class KlDivergence(Recorded):
    """Mean over samples of ``sum p log(p / q)``, with p the float model's softmax and q the quantized one's.

    Shapes:
        update: [N, classes], both the same.

    Units:
        nats, 0 or more.

    Edge case:
        Where the float model ends in a softmax, its rows are taken as they are, and the quantized model's are
        made to add up to 1; probabilities count as 2^-24 at least. Only for outputs that have an argmax to
        speak of, see ``Top1Agreement``.

    Raises:
        MetricError: no sample was counted.

    Source:
        Kullback and Leibler 1951, "On information and sufficiency".

    Example:
        >>> kl = KlDivergence()
        >>> kl.update(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]]))
        >>> round(kl.compute(), 4)
        0.1438
    """

    unit: ClassVar[Unit] = "number"
    higher_is_better: ClassVar[bool] = False

    @staticmethod
    def accepts(output: Array, samples: int) -> bool:
        """Only float [samples, classes]."""
        return is_scores(output, samples)

    def update(self, float_output: Array, quantized_output: Array) -> None:
        """Add one batch's divergences."""
        for exact, noisy in paired_rows(float_output, quantized_output):
            is_probability = (exact.min(axis=1) >= 0) & (np.abs(exact.sum(axis=1) - 1) <= SUM_TOLERANCE)
            logs = [
                np.where(is_probability[:, None], _log_of_probabilities(rows), _log_softmax(rows))
                for rows in (exact, noisy)
            ]
            found = np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=1)
            self._recorder.add(np.maximum(found, 0.0)[:, None])  # rounding may leave -1e-17

    def compute(self) -> float:
        """The mean over all samples so far."""
        rows = require_rows(self._recorder, "kl_divergence")
        return float(rows.sum() / len(rows))

    def resampling(self) -> SampleSums:
        """Each sample's divergence, of which the value is the mean."""
        rows = self._recorder.rows
        return SampleSums(rows, lambda sums: sums[..., 0] / len(rows))


def _log_softmax(rows: Float64Array) -> Float64Array:
    shifted = rows - rows.max(axis=1, keepdims=True)
    found: Float64Array = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    return found


def _log_of_probabilities(rows: Float64Array) -> Float64Array:
    floored = np.maximum(rows, FLOOR)
    found: Float64Array = np.log(floored / floored.sum(axis=1, keepdims=True))
    return found
