"""Metric and SQNR of a variant of a model, on samples that stream by."""

import math
from dataclasses import dataclass

from ptq_cli.analysis.sums import NoiseSums
from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.metrics.base import LabelMetric, PairMetric
from ptq_cli.evaluation.metrics.metric_registry import PAIR_METRICS
from ptq_cli.evaluation.runs.judged import Judged
from ptq_cli.evaluation.runs.model_outputs import Place, first_nonfinite, require_same_shapes
from ptq_cli.evaluation.runs.targets import fitting_targets

SQNR = "sqnr_db"


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What models are judged by, and which of their outputs.

    Attributes:
        judged: the metric, if it needs labels.
        pair: the metric, if it compares the two models; ``sqnr_db`` is neither, and always measured.
    """

    name: str
    output: int
    output_name: str
    judged: Judged | None = None
    pair: type[PairMetric] | None = None


class Judge:
    """Judges a variant of a model beside the float model.

    Attributes:
        not_finite: the first sample for which the variant's output holds NaN or Inf; empty if none does.

    Edge case: NaN or Inf in the variant's output make its metric and its SQNR NaN.
    """

    def __init__(self, yardstick: Yardstick) -> None:
        """Begin with no sample."""
        self.not_finite = ""
        self._yardstick = yardstick
        self._noise = NoiseSums()
        judged, pair = yardstick.judged, yardstick.pair
        self._label_metric: LabelMetric | None = judged.make() if judged is not None else None
        self._pair_metric: PairMetric | None = pair() if pair is not None else None

    def update(self, wanted: Array, found: Array, place: Place) -> None:
        """Add some samples."""
        require_same_shapes([wanted], [found], [self._yardstick.output_name], "quantized model", place)
        self.not_finite = self.not_finite or first_nonfinite(found, place)
        if self.not_finite:
            return
        samples = place.batch.size
        self._noise.update(wanted, found, samples)
        if self._label_metric is not None:
            self._label_metric.update(
                *fitting_targets(self._label_metric, self._yardstick.name, found, place, wanted)
            )
        if self._pair_metric is not None:
            self._require_fit(self._pair_metric, wanted, samples)
            self._pair_metric.update(wanted, found)

    @property
    def sqnr_db(self) -> float:
        """SQNR of the output so far, in decibels."""
        return math.nan if self.not_finite else self._noise.sqnr_db

    @property
    def value(self) -> float:
        """The metric so far."""
        metric = self._label_metric or self._pair_metric
        return self.sqnr_db if metric is None or self.not_finite else metric.compute()

    @property
    def metric(self) -> LabelMetric | PairMetric | type[PairMetric]:
        """What tells the unit of ``value``, and whether a higher one is better."""
        return self._label_metric or self._pair_metric or PAIR_METRICS[SQNR]

    def _require_fit(self, metric: PairMetric, output: Array, samples: int) -> None:
        if not metric.accepts(output, samples):
            raise MetricError(
                f"{self._yardstick.name} cannot be computed for output '{self._yardstick.output_name}'",
                hint="--metric sqnr_db works for every output",
            )


def drop(float_value: float | None, value: float, *, higher_is_better: bool) -> float | None:
    """Loss of a value beside the float model's; None for a metric that compares two models.

    Edge case: NaN where both are infinite: nothing can be told of them.

    Example:
        >>> drop(0.75, 0.5, higher_is_better=True), drop(None, 30.0, higher_is_better=True)
        (0.25, None)
    """
    if float_value is None:
        return None
    change = float_value - value if math.isfinite(float_value) or math.isfinite(value) else math.nan
    return change if higher_is_better else -change
