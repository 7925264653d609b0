"""How well a model does on samples that stream by: the metric asked for, and the first output's SQNR."""

import math

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.report.analysis.sums import NoiseSums
from ptq_cli.report.metrics.base import LabelMetric, Labels, PairMetric
from ptq_cli.report.metrics.registry import PAIR_METRICS, is_label_metric, make_label_metric

SQNR = "sqnr_db"


class Judge:
    """Judges a variant of a model beside the float model.

    Example:
        >>> judge = Judge("top1")
        >>> scores = np.float32([[2.0, 1.0], [0.0, 1.0]])
        >>> judge.update(scores, scores / 2, np.array([0, 0]), "the model with one layer changed")
        >>> judge.value, round(judge.sqnr_db, 2)
        (0.5, 6.02)
    """

    def __init__(self, metric: str) -> None:
        """Begin with no sample.

        Args:
            metric: its name; ``sqnr_db`` is always measured.
        """
        self._noise = NoiseSums()
        self._label_metric: LabelMetric | None = (
            make_label_metric(metric, {}) if is_label_metric(metric) else None
        )
        self._pair_metric: PairMetric | None = (
            PAIR_METRICS[metric]() if metric in PAIR_METRICS and metric != SQNR else None
        )

    def update(self, wanted: Array, found: Array, labels: Labels | None, what: str) -> None:
        """Add some samples.

        Args:
            wanted: the float model's output, found finite before.
            found: the variant's.
            labels: where the metric needs them.
            what: the variant, for the message.

        Raises:
            MetricError: the variant's output holds NaN or Inf, or does not fit the metric.
        """
        if not np.isfinite(found).all():
            raise MetricError(
                f"the output of {what} holds NaN or Inf",
                hint="look at the layer's arithmetic, or leave it out with --layers",
            )
        samples = len(wanted) if wanted.ndim else 1
        self._noise.update(wanted, found, samples)
        if self._label_metric is not None and labels is not None:
            self._label_metric.update(found, labels)
        if self._pair_metric is not None:
            self._pair_metric.update(wanted, found)

    @property
    def sqnr_db(self) -> float:
        """SQNR of the output so far, in decibels."""
        return self._noise.sqnr_db

    @property
    def value(self) -> float:
        """The metric so far."""
        metric = self._label_metric or self._pair_metric
        return self.sqnr_db if metric is None else metric.compute()


def drop(float_value: float | None, value: float, *, higher_is_better: bool) -> float | None:
    """Return how much worse a value is than the float model's; None for a metric that compares two models.

    Edge case:
        NaN where both are infinite: nothing can be told of them.

    Example:
        >>> drop(0.75, 0.5, higher_is_better=True), drop(None, 30.0, higher_is_better=True)
        (0.25, None)
    """
    if float_value is None:
        return None
    change = float_value - value if math.isfinite(float_value) or math.isfinite(value) else math.nan
    return change if higher_is_better else -change
