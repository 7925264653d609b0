"""A range that a method decides, the grids that hold it, and the error expected of a grid on a histogram.

The values of a bin are taken to be spread evenly over it. In steps of the scale, ``u = x / scale``, a
value becomes the integer ``n(u) = clip(round(u), lowest, highest)``, and the squared error has the
antiderivative ``n / 12 + (u - n)^3 / 3``: rounding and clipping in one closed form, so that no grid of
samples is needed.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.tensor_statistics import SIGN, BitHistogram, TensorStatistics
from ptq_cli.core.arithmetic import ZERO_AMAX, QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.formats import IntegerFormat, NumberFormat


@dataclass(frozen=True)
class Choice:
    """A range that a method chose.

    Units: low, high: as the tensor's values.

    Example:
        >>> Choice(-0.5, 2.0).amax, symmetric_choice(2.0).low
        (2.0, -2.0)
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("amax",)

    low: Annotated[float, "The lower end, 0 or below; -amax where it is symmetric."]
    high: Annotated[float, "The upper end, 0 or above."]
    candidates: Annotated[
        int | None,
        "How many ranges the method could choose from, or None where it computes one and does not search. "
        "With one candidate it chose nothing: the range is the whole one.",
    ] = None

    @property
    def amax(self) -> float:
        """The larger end's magnitude."""
        return max(-self.low, self.high)


def symmetric_choice(amax: float, candidates: int | None = None) -> Choice:
    """The range ``[-amax, amax]``.

    Example:
        >>> symmetric_choice(3.0, candidates=2)
        Choice(low=-3.0, high=3.0, candidates=2)
    """
    return Choice(-amax, amax, candidates)


def fixed_point_parameters(
    choice: Choice, format: IntegerFormat, integer: int | None = None
) -> QuantParameters:
    """The power-of-two scale of a tensor with ``integer`` bits before its binary point.

    The values lie in [0, 2^integer) where nothing is negative, otherwise in [-2^integer, 2^integer).

    Args:
        choice: the tensor's range, by an amax method.
        format: the integers. Where it does not fit the sign of the tensor, a zero point at its end or in its
            middle makes it fit.
        integer: bits before the point, without the sign; None for as few as hold amax.

    Shapes: scale and zero point: ().
    Edge case: An amax of exactly 2^integer saturates by one step. A tensor that was always 0 gets scale 1.
    Source: QKeras, ``quantized_bits``; Coelho et al. 2021.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> relu6 = fixed_point_parameters(Choice(0.0, 6.0), UINT8)
        >>> float(relu6.scale), int(relu6.zero_point)
        (0.03125, 0)
        >>> signed = fixed_point_parameters(Choice(-1.5, 1.0), UINT8)
        >>> float(signed.scale), int(signed.zero_point)
        (0.015625, 128)
    """
    negative = choice.low < 0
    if integer is None:
        if choice.amax <= ZERO_AMAX:
            return _parameters(1.0, format, negative)
        integer = bits_before_point(choice.amax)
    return _parameters(2.0 ** (integer - format.bits + negative), format, negative)


def bits_before_point(amax: float) -> int:
    """The smallest ``integer`` with ``amax <= 2^integer``.

    Example:
        >>> bits_before_point(6.0), bits_before_point(4.0), bits_before_point(0.3)
        (3, 2, -1)
    """
    mantissa, exponent = math.frexp(amax)
    return exponent - 1 if mantissa == 0.5 else exponent


def step_parameters(choice: Choice, format: IntegerFormat, step: float | None = None) -> QuantParameters:
    """Parameters whose values are the multiples of ``step``.

    Args:
        choice: the tensor's range, by an amax method.
        format: the integers.
        step: the distance of two values; None for the one with which the largest integer stands for amax.

    Shapes: scale and zero point: ().
    Edge case: A tensor that was always 0 gets scale 1.
    Source: SpikingJelly, ``step_quantize``.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> found = step_parameters(Choice(-1.27, 0.5), UINT8)
        >>> round(float(found.scale), 6), int(found.zero_point)
        (0.01, 128)
    """
    negative = choice.low < 0
    if step is None:
        largest = (1 << (format.bits - negative)) - 1
        step = _step_to(choice.amax, largest) if choice.amax > ZERO_AMAX else 1.0
    return _parameters(step, format, negative)


def _step_to(amax: float, largest: int) -> float:
    # Towards zero, as in parameters_from_range: a grid that reaches above a Clip's bound does not replace it.
    step = np.float32(amax / largest)
    return float(np.nextafter(step, np.float32(0)) if float(step) * largest > amax else step)


def _parameters(scale: float, format: IntegerFormat, negative: bool) -> QuantParameters:
    # The integers from 0 on are those of an unsigned format, and the signed ones lie about its middle.
    middle = 0 if format.signed else 1 << (format.bits - 1)
    zero_point = middle if negative else format.qmin
    return QuantParameters(np.asarray(scale, np.float32), np.asarray(zero_point, np.int64), format)


def grid_of_range(low: float, high: float, format: NumberFormat, *, symmetric: bool) -> QuantParameters:
    """The parameters of a scaled quantizer whose grid covers a range.

    Shapes: scale and zero point: ().
    Edge case: Symmetric parameters cover the end that is further from 0; a float format has no others.

    Raises: RecipeValueError: the bounds are not finite or ``low > high``.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW, UINT8
        >>> int(grid_of_range(-1.0, 1.0, UINT8, symmetric=False).zero_point)
        128
        >>> grid = grid_of_range(-1.0, 1.27, INT8_NARROW, symmetric=True)
        >>> int(grid.zero_point), round(float(grid.scale), 6)
        (0, 0.01)
    """
    if not symmetric and isinstance(format, IntegerFormat):
        return parameters_from_range(low, high, format)
    # An unsigned format is then the signed one, shifted: its 255 steps are shared by both sides.
    zero_point = 0 if format.signed else -int(signed_format(format).qmin)
    scale = scale_from_amax(max(-low, high), signed_format(format))
    return QuantParameters(scale, np.asarray(zero_point, np.int64), format)


def signed_format(format: NumberFormat) -> NumberFormat:
    """The same, with a sign: its 255 steps are shared by both sides."""
    return format if format.signed else IntegerFormat(format.bits, signed=True)


_Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SignedBins:
    """The bins of a histogram on the number line, in order.

    Attributes:
        low, high: each bin's ends; the outermost ones end at the smallest and the largest value.
        counts: how many values each holds.

    Shapes: low, high, counts: (B,).
    """

    low: _Values
    high: _Values
    counts: npt.NDArray[np.int64]


def signed_bins(statistics: TensorStatistics, histogram: BitHistogram) -> SignedBins:
    """A tensor's bins on the number line.

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> collector = HistogramCollector()
        >>> collector.update(np.array([-2.0, 0.5, 1.0], np.float32))
        True
        >>> bins = signed_bins(collector.statistics(), collector.statistics().histogram)
        >>> bins.low.tolist(), bins.high.tolist(), bins.counts.tolist()
        ([-2.0, 0.5, 1.0], [-2.0, 0.5009765625, 1.0], [1, 1, 1])
    """
    near, far = histogram.lower_edges().astype(np.float64), histogram.upper_edges()
    negative = (histogram.keys & SIGN) != 0
    # No value lies beyond the extremes, which often share a bin with nothing: 6.0 behind a ReLU6.
    largest = np.where(negative, -statistics.low, statistics.high)
    smallest = np.where(negative, -statistics.high, statistics.low)
    near, far = np.maximum(near, smallest), np.minimum(far, largest)
    low, high = np.where(negative, -far, near), np.where(negative, -near, far)
    order = np.argsort(low, kind="stable")
    return SignedBins(low[order], high[order], histogram.counts[order])


def counts_between(bins: SignedBins, edges: _Values) -> _Values:
    """How many values lie between edges, with each bin's spread evenly over it.

    A drawing's counts, not a decision's: they need not be whole.

    Args:
        bins: of the tensor.
        edges: ascending; the last interval holds its upper end.

    Shapes: edges: (N + 1,); the result has (N,).

    Example:
        >>> bins = SignedBins(np.array([0.0, 3.0]), np.array([2.0, 3.0]), np.array([8, 1]))
        >>> counts_between(bins, np.array([0.0, 1.0, 2.0, 3.0])).tolist()
        [4.0, 4.0, 1.0]
    """
    wide = bins.high > bins.low
    ends = np.column_stack([bins.low[wide], bins.high[wide]]).ravel()
    below = np.concatenate([[0], np.cumsum(bins.counts[wide])])
    counted = np.column_stack([below[:-1], below[1:]]).ravel().astype(np.float64)
    found = np.diff(np.interp(edges, ends, counted)) if ends.size else np.zeros(edges.size - 1)
    # A bin of one value, such as the 6.0 behind a ReLU6, has no width to be spread over.
    index = np.clip(np.searchsorted(edges, bins.low[~wide], side="right") - 1, 0, edges.size - 2)
    np.add.at(found, index, bins.counts[~wide])
    spread: _Values = found
    return spread


@dataclass(frozen=True)
class ExpectedError:
    """The error of quantizing and dequantizing a tensor's values.

    Units: mse, clipping: squared units of the values; sqnr_db: decibels.
    """

    mse: Annotated[float, "Mean squared error, of all values, zeros too."]
    clipping: Annotated[float, "The part of it that values beyond the last levels have."]
    sqnr_db: Annotated[float, "Power of the values over that of the error; inf where there is no error."]


def count_clipped(statistics: TensorStatistics, histogram: BitHistogram, choice: Choice) -> tuple[int, int]:
    """Least and most values that are beyond a range.

    The first counts the bins that begin at an end of the range or beyond it; the second also the bin that an
    end cuts, of whose values a histogram cannot say on which side they are. Where the ends are bins' edges,
    as those of percentiles are, the two are equal.

    Edge case: The smallest and the largest value themselves do not count as beyond a range that ends there.

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> collector = HistogramCollector()
        >>> collector.update(np.array([0.0, 0.5, 1.0, 1.0, 4.0], np.float32))
        True
        >>> statistics = collector.statistics()
        >>> count_clipped(statistics, statistics.histogram, Choice(0.0, 4.0))
        (0, 0)
        >>> count_clipped(statistics, statistics.histogram, Choice(0.0, 1.0001))
        (1, 3)
    """
    bins = signed_bins(statistics, histogram)
    above = (bins.low >= choice.high) & (statistics.high > choice.high)
    below = (bins.high <= choice.low) & (statistics.low < choice.low)
    cut = ((bins.low < choice.high) & (choice.high < bins.high)) | (
        (bins.low < choice.low) & (choice.low < bins.high)
    )
    surely = int(bins.counts[above | below].sum())
    return surely, int(bins.counts[above | below | cut].sum())


def expected_error(
    statistics: TensorStatistics, histogram: BitHistogram, parameters: QuantParameters
) -> ExpectedError:
    """The error that a tensor's values are expected to have with one scale and zero point.

    Shapes: parameters: per tensor.
    Edge case: Zeros are exact. A tensor without values, or of zeros only, has no error and an infinite SQNR.
    Source: ONNX QuantizeLinear and DequantizeLinear; within a bin, Bennett 1948, "Spectra of quantized
        signals".

    Example:
        >>> from ptq_cli.collectors.histogram_collector import HistogramCollector
        >>> from ptq_cli.core.arithmetic import parameters_from_range
        >>> from ptq_cli.core.formats import UINT8
        >>> collector = HistogramCollector()
        >>> collector.update(np.linspace(0.0, 255.0, 100_001, dtype=np.float32))
        True
        >>> statistics = collector.statistics()
        >>> full = parameters_from_range(0.0, 255.0, UINT8)
        >>> round(expected_error(statistics, statistics.histogram, full).mse, 4)  # 1 / 12
        0.0833
    """
    return error_of_bins(signed_bins(statistics, histogram), statistics.count, parameters)


def error_of_bins(bins: SignedBins, values: int, parameters: QuantParameters) -> ExpectedError:
    """The same of a tensor with so many ``values``, zeros too, whose bins are known already."""
    scale, zero_point = float(parameters.scale), int(parameters.zero_point)
    lowest, highest = parameters.integers.qmin - zero_point, parameters.integers.qmax - zero_point
    low, high = bins.low / scale, bins.high / scale
    total = _sum(_mean_error(low, high, lowest, highest), bins.counts) * scale**2
    beyond = _mean_beyond(low - highest, high - highest) + _mean_beyond(lowest - high, lowest - low)
    power = power_of_bins(bins)
    count = max(values, 1)
    sqnr = 10 * math.log10(power / total) if total > 0 and power > 0 else math.inf
    return ExpectedError(total / count, _sum(beyond, bins.counts) * scale**2 / count, sqnr)


def power_of_bins(bins: SignedBins) -> float:
    """The sum of the squared values."""
    return _sum((bins.low**2 + bins.low * bins.high + bins.high**2) / 3, bins.counts)


def _sum(means: _Values, counts: npt.NDArray[np.int64]) -> float:
    return float(np.sum(means * counts))


def _mean_error(low: _Values, high: _Values, lowest: int, highest: int) -> _Values:
    """The mean squared error, in steps, of values spread evenly over each [low, high]."""
    first, last = (np.clip(np.rint(end), lowest, highest) for end in (low, high))
    left, right = low - first, high - last
    # Where one level serves the whole bin; the antiderivative's difference would lose a narrow bin's digits.
    within = (left**2 + left * right + right**2) / 3
    width = np.where(high > low, high - low, 1.0)
    across = ((last - first) / 12 + (right**3 - left**3) / 3) / width
    mean: _Values = np.where(first == last, within, across)
    return mean


def _mean_beyond(start: _Values, end: _Values) -> _Values:
    """The mean of ``max(t, 0)^2`` for ``t`` spread evenly over each [start, end]."""
    near, far = np.maximum(start, 0.0), np.maximum(end, 0.0)
    share = np.where(end > start, (far - near) / np.where(end > start, end - start, 1.0), 1.0)
    mean: _Values = share * (near**2 + near * far + far**2) / 3
    return mean
