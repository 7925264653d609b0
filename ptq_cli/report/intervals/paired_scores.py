"""What the scores of two models on the same samples tell about the drop."""

import numpy as np

from ptq_cli.report.intervals.bootstrap import Float64Array
from ptq_cli.report.intervals.flips import Flips


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
