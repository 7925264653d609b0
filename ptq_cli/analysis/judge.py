"""Sums of tensors whose samples stream by, and from them the metric and SQNR of a variant of a model."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import Float64Array
from ptq_cli.evaluation.metrics.base import LabelMetric, PairMetric
from ptq_cli.evaluation.metrics.metric_registry import PAIR_METRICS, SQNR
from ptq_cli.evaluation.runs.judged import Judged, fitting_targets
from ptq_cli.evaluation.runs.model_outputs import Place, first_nonfinite, require_same_shapes

UNIT_EXPONENT = 1074  # all float64 are whole multiples of 2^-1074
_BLOCK = 1 << 16  # elements that are worked on at once: their temporaries stay in the caches
_MIDDLE = 0.999  # share of the values whose part of the range is told


class ExactSum:
    """The exact sum of float64 numbers, rounded once, when it is read.

    Edge case: The sum of nothing is 0. Infinities and NaN are refused.
    Source: Neal 2015, "Fast exact summation using small and large superaccumulators".
    """

    def __init__(self) -> None:
        self._units = 0

    def add(self, addend: float) -> None:
        """Add a number."""
        if not math.isfinite(addend):
            raise ValueError(f"{addend} cannot be added exactly")
        # A float's denominator is a power of two, at most 2^1074.
        numerator, denominator = addend.as_integer_ratio()
        self._units += numerator << (UNIT_EXPONENT + 1 - denominator.bit_length())

    @property
    def value(self) -> float:
        """The sum, as the nearest float64; inf beyond the largest."""
        try:
            return self._units / (1 << UNIT_EXPONENT)
        except OverflowError:
            return math.inf if self._units > 0 else -math.inf


def decibels(signal: float, noise: float) -> float:
    """``10 log10(signal / noise)``, as in the metric ``sqnr_db``.

    Edge case: No noise is inf, also of no signal; noise without signal is -inf.

    Example:
        >>> decibels(100.0, 1.0), decibels(0.0, 0.0), decibels(0.0, 1.0)
        (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal > 0 else -math.inf


class NoiseSums:
    """Signal and noise of a tensor in the quantized model, against the float model's.

    Edge case: The ratio is NaN once a value was NaN or Inf.
    """

    def __init__(self) -> None:
        self.is_finite = True
        self._signal, self._noise = ExactSum(), ExactSum()

    def update(self, wanted: Array, found: Array, samples: int) -> None:
        """Add some samples."""
        for one, other in zip(blocks(wanted, samples), blocks(found, samples), strict=True):
            exact = one.astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                signal, noise = _squares(exact), _squares(exact - other.astype(np.float64))
            if not np.isfinite(signal + noise).all():
                self.is_finite = False
                return
            _add(self._signal, signal)
            _add(self._noise, noise)

    @property
    def sqnr_db(self) -> float:
        """The ratio so far, in decibels."""
        return decibels(self._signal.value, self._noise.value) if self.is_finite else math.nan


class QuantizationSums:
    """What the quantization of an activation alone does to the float model's values.

    Attributes:
        parameters: that it is quantized with; per tensor.
        count: values so far.
        clipped: how many of them lie outside the range by more than half a step.
        integers: how often each integer was met, from the least on.
        channel_amax: the largest magnitude of each channel; None without channels.
        is_finite: whether no value was NaN or Inf so far; one that was makes the ratio NaN.

    Shapes: update: [samples, ...].
    """

    def __init__(self, parameters: QuantParameters, channel_axis: int | None) -> None:
        self.parameters = parameters
        self.is_finite = True
        self.count = self.clipped = 0
        format_ = parameters.integers
        self.integers = np.zeros(format_.qmax - format_.qmin + 1, np.int64)
        self.channel_amax: Float64Array | None = None
        self._axis = channel_axis
        self._signal, self._noise, self._clip_noise = ExactSum(), ExactSum(), ExactSum()

    def update(self, values: Array, samples: int) -> None:
        """Add some samples."""
        scale = np.float32(self.parameters.scale)
        low = self.parameters.integers.qmin - int(self.parameters.zero_point)
        high = self.parameters.integers.qmax - int(self.parameters.zero_point)
        for block in blocks(values, samples):
            exact = block.astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                signal = _squares(exact)
            if not np.isfinite(signal).all():
                self.is_finite = False
                return
            with np.errstate(over="ignore"):
                steps = np.rint(block.astype(np.float32) / scale)
            kept = np.clip(steps, low, high)
            noise = (exact - (kept * scale)) ** 2
            _add(self._signal, signal)
            _add(self._noise, noise.sum(axis=1))
            outside = steps != kept
            self.count += block.size
            found = int(np.count_nonzero(outside))
            if found:
                self.clipped += found
                _add(self._clip_noise, np.where(outside, noise, 0.0).sum(axis=1))
            self.integers += np.bincount(
                (kept - low).astype(np.int64).reshape(-1), minlength=len(self.integers)
            )
        self._see_channels(values)

    @property
    def sqnr_db(self) -> float:
        """SQNR of the quantization alone, in decibels."""
        return decibels(self._signal.value, self._noise.value) if self.is_finite else math.nan

    @property
    def clip_share(self) -> float:
        """Share of the noise that comes of values outside the range, 0 to 1."""
        return self._clip_noise.value / self._noise.value if self._noise.value else 0.0

    def _see_channels(self, values: Array) -> None:
        if self._axis is None or values.ndim <= abs(self._axis) or not values.size:
            return
        axis = self._axis % values.ndim
        others = tuple(index for index in range(values.ndim) if index != axis)
        largest = np.maximum(values.max(axis=others), -values.min(axis=others)).astype(np.float64)
        if self.channel_amax is not None and len(self.channel_amax) == len(largest):
            largest = np.maximum(self.channel_amax, largest)
        self.channel_amax = largest


def range_used(integers: npt.NDArray[np.int64]) -> float:
    """Share of the integers' range that the middle 99.9 % of the values occupy.

    Args:
        integers: how often each integer was met, from the least on.

    Edge case: 0 for values that all have one integer, and for no values.

    Example:
        >>> range_used(np.array([1, 5000, 5000, 0, 0])), range_used(np.array([10, 0, 0, 0, 10]))
        (0.25, 1.0)
    """
    total = int(integers.sum())
    if not total or len(integers) < 2:
        return 0.0
    tail = total * (1 - _MIDDLE) / 2
    below, above = np.cumsum(integers), np.cumsum(integers[::-1])
    first = int(np.argmax(below > tail))
    last = len(integers) - 1 - int(np.argmax(above > tail))
    return (last - first) / (len(integers) - 1)


def channel_imbalance(amax: Float64Array | None) -> float | None:
    """Largest magnitude of a channel over the median of all channels.

    Edge case: None without channels or with one, and where half of them hold zeros only.

    Example:
        >>> channel_imbalance(np.array([1.0, 8.0, 2.0])), channel_imbalance(np.array([3.0]))
        (4.0, None)
    """
    if amax is None or len(amax) < 2:
        return None
    median = float(np.median(amax))
    return float(amax.max()) / median if median > 0 else None


def blocks(values: Array, samples: int) -> Iterator[Array]:
    """Yield the samples of a tensor in rows, as many at once as stay in the caches.

    Shapes: values: [samples, ...], or [k * samples, ...]; each yielded array is [rows, elements of a sample].
    Edge case: A tensor that is not of so many samples is one row.

    Example:
        >>> [block.shape for block in blocks(np.zeros((6, 2, 2)), 3)]
        [(3, 8)]
    """
    apart = values.ndim > 0 and samples > 0 and values.shape[0] % samples == 0 and values.size > 0
    rows = np.ascontiguousarray(values).reshape(samples if apart else 1, -1)
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _squares(rows: Float64Array) -> Float64Array:
    # Summed along each sample by itself: what a sample adds does not depend on those beside it.
    summed: Float64Array = (rows * rows).sum(axis=1)
    return summed


def _add(total: ExactSum, addends: Float64Array) -> None:
    for addend in addends:
        total.add(float(addend))


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
