"""What the scores of two models on the same samples say about the drop."""

import numpy as np

from ptq_cli.report.intervals.bootstrap import Float64Array, OfSums, bootstrap_interval
from ptq_cli.report.intervals.flips import Flips
from ptq_cli.report.intervals.interval import Interval


def count_flips(float_scores: Float64Array, quantized_scores: Float64Array) -> Flips:
    """Return how many samples only one of the models has right.

    Shapes:
        both [N] of 0 (wrong) and 1 (right), in the same order; N is at least 1.

    Units:
        samples.

    Edge case:
        Models that are right on the same samples have no flips.

    Source:
        McNemar 1947, "Note on the sampling error of the difference between correlated proportions or
        percentages".

    Example:
        >>> count_flips(np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])).lost
        1
    """
    lost = int(np.count_nonzero(float_scores > quantized_scores))
    gained = int(np.count_nonzero(float_scores < quantized_scores))
    return Flips.counted(len(float_scores), lost, gained)


def paired_interval(
    float_rows: Float64Array, quantized_rows: Float64Array, of_sums: OfSums, *, higher_is_better: bool
) -> Interval | None:
    """Return the 95 % interval of the drop, by the paired bootstrap.

    Args:
        float_rows: what each sample adds to the float model's sums.
        quantized_rows: the same of the quantized model.
        of_sums: either model's value from its sums.
        higher_is_better: false for an error, whose drop is how much it grew.

    Shapes:
        both [N, k], the same samples in the same order.

    Units:
        those of the metric.

    Edge case:
        None for fewer than two samples.

    Source:
        Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 8.

    Example:
        >>> rows = np.arange(40.0)[:, None]
        >>> paired_interval(rows, rows - 1, lambda sums: sums[..., 0] / 40, higher_is_better=True)
        Interval(low=1.0, high=1.0, method='bootstrap', confidence=0.95)
    """
    width, sign = float_rows.shape[1], 1 if higher_is_better else -1

    def drop(sums: Float64Array) -> Float64Array:
        return sign * (of_sums(sums[..., :width]) - of_sums(sums[..., width:]))

    return bootstrap_interval(np.hstack([float_rows, quantized_rows]), drop)
