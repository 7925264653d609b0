"""What is decided of one weight: its scales, those that its biases need, and its integers."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.formats import Granularity, PerTensor
from ptq_cli.core.pair_sums import exceeds_pairs, widened_for_pairs
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.integer_storage import Keep
from ptq_cli.qdq.write.weight_quantizer import StoredWeight, WeightQuantizer, granularity_of

# What a weight's values are like, channel by channel: the largest, their sum, and how many are not zero.


BLOCK = 1 << 17
"""Elements that are looked at together: they stay in a core's cache between one question and the next."""


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """Absolute values of a weight.

    Attributes:
        granularity: what shares a number below.
        largest: of each channel; NaN or Inf where the channel holds one.
        total: of each channel, added up.
        nonzero: how many values of each channel are not zero.

    Shapes:
        Each as the granularity's scale.
    """

    granularity: Granularity
    largest: FloatArray
    total: npt.NDArray[np.float64]
    nonzero: npt.NDArray[np.int64]

    @property
    def is_finite(self) -> bool:
        """No value is NaN or Inf."""
        return bool(np.isfinite(self.largest).all())

    @property
    def zero(self) -> npt.NDArray[np.bool_]:
        """Which channels count as all zero."""
        return np.asarray(self.largest <= ZERO_AMAX)


def magnitudes_of(weight: FloatArray, granularity: Granularity) -> Magnitudes:
    """Return the magnitudes of a weight, which is read once.

    Shapes:
        weight: any; the result's as the granularity's scale.

    Edge case:
        A channel without values has magnitudes of 0. NaN in a channel makes its largest NaN.

    Raises:
        AxisError: the weight has no such axis.

    Example:
        >>> from ptq_cli.core.formats import PerAxis
        >>> found = magnitudes_of(np.float32([[1.0, -2.0], [0.0, 0.5]]), PerAxis(0))
        >>> found.largest.tolist(), found.total.tolist(), found.nonzero.tolist()
        ([2.0, 0.5], [3.0, 0.5], [2, 1])
    """
    shape = granularity.scale_shape(weight.shape)
    axes = granularity.reduced_axes(weight.shape)
    largest = np.zeros(shape, np.float32)
    total, nonzero = np.zeros(shape, np.float64), np.zeros(shape, np.int64)
    if weight.ndim == 0:
        return Magnitudes(granularity, np.abs(weight), total + np.abs(weight), nonzero + (weight != 0))
    rows = max(1, BLOCK * len(weight) // max(weight.size, 1))
    apart = bool(shape) and 0 not in axes  # Each row has numbers of its own.
    block = np.empty((min(rows, len(weight)), *weight.shape[1:]), np.float32)
    for start in range(0, len(weight), rows):
        part = weight[start : start + rows]
        magnitude = np.abs(part, out=block[: len(part)])
        own = slice(start, start + rows) if apart else ...
        largest[own] = np.maximum(largest[own], magnitude.max(axis=axes, initial=0.0))
        total[own] += magnitude.sum(axis=axes)
        size = magnitude.size // max(total[own].size, 1)
        nonzero[own] += size if magnitude.all() else np.count_nonzero(magnitude, axis=axes)
    return Magnitudes(granularity, largest, total, nonzero)


# Weights in which a few values take the range, so that all others share a few steps of it.


MOST_RATIO = 64.0
"""Of the end of a range to the mean magnitude beside the largest value: the mean is then 2 of 127 steps.
Normal weights have 5, heavy-tailed ones (Laplace) about 12."""
MOST_CHANNEL_RATIO = 16.0
"""Of the largest channel's amax to the median one's, where all share a scale: 8 steps for a usual one."""
FEWEST_CHANNELS = 4


@dataclass(frozen=True)
class Outlier:
    """The worst of a weight's outliers.

    Attributes:
        axis: of the channel, or None if it is a value of a weight with one scale.
        channel: which one; 0 without an axis.
        ratio: how many times as large as the others it is.
        channels: how many channels have one.
    """

    axis: int | None
    channel: int
    ratio: float
    channels: int

    def describe(self) -> str:
        """Say what it is.

        Example:
            >>> Outlier(0, 3, 211.4, 2).describe()
            'a value of channel 3 (axis 0) is 211 times the mean of the others, and of 1 more channel'
            >>> Outlier(None, 0, 99.6, 1).describe()
            'a value is 100 times the mean of the others'
        """
        if self.axis is None:
            return f"a value is {self.ratio:.0f} times the mean of the others"
        more = self.channels - 1
        rest = f", and of {more} more channel{'' if more == 1 else 's'}" if more else ""
        where = f"a value of channel {self.channel} (axis {self.axis})"
        return f"{where} is {self.ratio:.0f} times the mean of the others{rest}"


@dataclass(frozen=True)
class LargeChannel(Outlier):
    """A channel that is far larger than the others with which it shares a scale."""

    def describe(self) -> str:
        """Say what it is.

        Example:
            >>> LargeChannel(0, 7, 40.0, 1).describe()
            'channel 7 (axis 0) is 40 times as large as the median one, and all share a scale'
        """
        where = f"channel {self.channel} (axis {self.axis})"
        return f"{where} is {self.ratio:.0f} times as large as the median one, and all share a scale"


def find_outlier(weight: FloatArray, parameters: QuantParameters, magnitudes: Magnitudes) -> Outlier | None:
    """Return what leaves most of a weight only a few steps, or None.

    A method that clips has a range that ends below the outlier: the scale tells, not the values.

    Args:
        weight: in real units.
        parameters: that were decided for it.
        magnitudes: of the weight, with the parameters' granularity.

    Shapes:
        weight: any; the parameters' scale has one element for each channel, or one for all.

    Edge case:
        Zeros are no values here: a pruned weight has its others' mean. A weight without values has none.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> from ptq_cli.core.formats import PerAxis
        >>> from ptq_cli.qdq.write.weight_decisions import magnitudes_of
        >>> weight = np.ones((2, 100), np.float32)
        >>> weight[1, 5] = 500.0
        >>> scale = np.float32([1, 500]) / 127
        >>> decided = QuantParameters(scale, np.zeros(2, np.int64), INT8_NARROW, PerAxis(0))
        >>> found = find_outlier(weight, decided, magnitudes_of(weight, PerAxis(0)))
        >>> found.channel, found.ratio
        (1, 500.0)
    """
    if not weight.size:
        return None
    granularity = parameters.granularity
    end = np.asarray(parameters.scale, np.float64) * parameters.format.qmax
    ratios = np.atleast_1d(_ratios(magnitudes, end))
    found = np.flatnonzero(ratios > MOST_RATIO)
    if found.size:
        worst = int(np.argmax(ratios))
        if isinstance(granularity, PerTensor):
            return Outlier(None, worst, float(ratios.flat[worst]), int(found.size))
        kept = [index for index in range(weight.ndim) if index not in granularity.reduced_axes(weight.shape)]
        channel = int(np.unravel_index(worst, ratios.shape)[-1])
        return Outlier(kept[-1], channel, float(ratios.flat[worst]), int(found.size))
    return _large_channel(weight) if isinstance(granularity, PerTensor) else None


def _ratios(magnitudes: Magnitudes, end: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the end of each channel's range over the mean of its values, the largest not counted."""
    largest = magnitudes.largest.astype(np.float64)
    others = magnitudes.nonzero - 1
    total = magnitudes.total - largest
    is_told = (others > 0) & (total > ZERO_AMAX)
    mean = np.where(is_told, total / np.maximum(others, 1), 1.0)
    result: npt.NDArray[np.float64] = np.where(is_told, np.minimum(largest, end) / mean, 0.0)
    return result


def _large_channel(weight: FloatArray) -> LargeChannel | None:
    """Return the channel, along any axis, that is far larger than those it shares a scale with."""
    worst, magnitude = None, np.abs(weight)
    for axis, size in enumerate(magnitude.shape):
        if magnitude.ndim < 2 or size < FEWEST_CHANNELS:
            continue
        amax = magnitude.max(axis=tuple(index for index in range(magnitude.ndim) if index != axis))
        median = float(np.median(amax))
        ratio = float(amax.max()) / median if median > ZERO_AMAX else 0.0
        if ratio > max(MOST_CHANNEL_RATIO, worst.ratio if worst is not None else 0.0):
            worst = LargeChannel(axis, int(np.argmax(amax)), ratio, 1)
    return worst


LARGEST_BIAS = 2**30
"""In steps. Half of int32: the other half is for the products that the kernel adds to it."""

SMALLEST_BIAS = 1e-20
"""Keeps the scale of a smaller one a normal float32."""


@dataclass(frozen=True)
class Bias:
    """What a weight's layer adds to its products.

    Attributes:
        value: the constant.
        input_scale: of the activation that the weight is multiplied with.
    """

    value: ir.Value
    input_scale: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class DecidedWeight:
    """What ``Parameters`` holds, of one site.

    Attributes:
        parameters: scale and zero point; None if no DequantizeLinear computes the values.
        stored: what the file holds.
        widened: how many channels have a wider scale than the method chose, for the bias to fit.
        unsearched: the method had only one candidate in every channel.
        outlier: the worst that leaves most of the values only a few steps.
    """

    parameters: QuantParameters | None
    stored: StoredWeight
    widened: int
    unsearched: bool
    outlier: Outlier | None


def decide_weight(
    weight: FloatArray,
    quantizers: Mapping[WeightSite, WeightQuantizer],
    biases: Mapping[WeightSite, Bias],
    keep: Keep,
) -> dict[WeightSite, DecidedWeight]:
    """Decide all the sites of one weight.

    Args:
        weight: in real units.
        quantizers: of each of its sites.
        biases: of sites that have one.
        keep: is given what is stored of a weight, and returns it from where it is kept.

    Raises:
        InvalidOnnxError: the weight holds NaN or Inf.
    """
    magnitudes = {axis: magnitudes_of(weight, axis) for axis in {granularity_of(site) for site in quantizers}}
    for site in quantizers:
        _require(magnitudes[granularity_of(site)].is_finite, site.tensor)
    choices = {site: item.choose(weight, site) for site, item in quantizers.items()}
    found = {site: item.parameters for site, item in choices.items() if item.parameters is not None}
    # Blocks have scales of their own, which is what they are for.
    outliers = {
        site: find_outlier(weight, item, magnitudes[granularity_of(site)])
        for site, item in found.items()
        if site.block_size is None
    }
    for site in [site for site in found if site.pairs is not None]:
        found[site] = quantizers[site].fit(_with_room_for_pairs(found[site], weight, site))
    widened: dict[WeightSite, int] = {}
    for site in [site for site in found if site in biases]:
        with constant(biases[site].value) as bias:
            zero = magnitudes[granularity_of(site)].zero
            fitted, widened[site] = fit_bias(found[site], float(biases[site].input_scale), bias, zero)
        found[site] = quantizers[site].fit(fitted)
    _tie_scales(quantizers, found)
    decided: dict[WeightSite, DecidedWeight] = {}
    for site, item in quantizers.items():
        twin = _stored_alike(site, quantizers, found, decided)
        stored = twin or keep(_checked(item.store(weight, site, found.get(site)), site), site.tensor)
        decided[site] = DecidedWeight(
            parameters=found.get(site),
            stored=stored,
            widened=widened.get(site, 0),
            unsearched=choices[site].unsearched,
            outlier=outliers.get(site),
        )
    return decided


def _with_room_for_pairs(
    parameters: QuantParameters, weight: FloatArray, site: WeightSite
) -> QuantParameters:
    assert site.pairs is not None  # noqa: S101 - the caller has asked
    format = parameters.integers
    end = float(max(format.qmax, -format.qmin))
    scale = widened_for_pairs(parameters.scale, weight, parameters.granularity, site.pairs, end)
    return replace(parameters, scale=scale)


def _checked(stored: StoredWeight, site: WeightSite) -> StoredWeight:
    """Return what is stored of a weight, of which no pair may exceed what its kernels can add."""
    if site.pairs is not None and site.block_size is None and exceeds_pairs(stored.values(), site.pairs):
        raise RuntimeError(f"two neighbors in '{site.tensor}' add up to more than {site.pairs.largest}")
    return stored


def _stored_alike(
    site: WeightSite,
    quantizers: Mapping[WeightSite, WeightQuantizer],
    found: Mapping[WeightSite, QuantParameters],
    decided: Mapping[WeightSite, DecidedWeight],
) -> StoredWeight | None:
    """Return what another reader of the weight stores, if that is the same; or None."""
    own, shared = found.get(site), replace(site, node="", input_index=0)
    for other, made in decided.items():
        theirs = made.parameters
        if replace(other, node="", input_index=0) != shared or quantizers[other] != quantizers[site]:
            continue
        if own is None or theirs is None:
            return made.stored if own is theirs else None
        if np.array_equal(own.scale, theirs.scale) and np.array_equal(own.zero_point, theirs.zero_point):
            return made.stored
    return None


def _tie_scales(
    quantizers: Mapping[WeightSite, WeightQuantizer], weights: dict[WeightSite, QuantParameters]
) -> None:
    """Give the layers that share a weight and its quantizer the widest scale that one of their biases needs.

    Otherwise each would have integers of its own.
    """
    shared: dict[WeightSite, list[WeightSite]] = {}
    for site in weights:
        shared.setdefault(replace(site, node="", input_index=0), []).append(site)
    for sites in shared.values():
        for site in sites:
            alike = [weights[other] for other in sites if quantizers[other] == quantizers[site]]
            scale = np.max([item.scale for item in alike], axis=0)
            if not np.array_equal(scale, weights[site].scale):
                weights[site] = quantizers[site].fit(replace(weights[site], scale=scale))


def require_finite(array: FloatArray, name: str) -> None:
    """Require that a constant holds numbers only.

    Raises:
        InvalidOnnxError: it holds NaN or Inf.
    """
    _require(bool(np.isfinite(array).all()), name)


def _require(is_finite: bool, name: str) -> None:
    if not is_finite:
        raise InvalidOnnxError(
            f"the constant '{name}' holds NaN or Inf, which no integer represents",
            hint="check this parameter in the trained model: the training may have diverged",
        )


def fit_bias(
    parameters: QuantParameters, input_scale: float, bias: FloatArray, zero: npt.NDArray[np.bool_]
) -> tuple[QuantParameters, int]:
    """Return a weight's parameters with its scale changed where the bias asks for it.

    An int32 bias has the scale ``s_input * s_weight``. A channel with tiny weights and a large bias, as
    BatchNorm folding makes them, would overflow it: its scale is widened. A channel of zeros has no scale of
    its own to lose, and takes the one that holds its bias most finely.

    Args:
        parameters: of the weight.
        input_scale: of the activation that the weight is multiplied with.
        bias: in real units.
        zero: which channels of the weight hold zeros only.

    Returns:
        The parameters, and how many channels with weights were widened.

    Shapes:
        bias: (C,), (1, C) or one element; zero: as the scale.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> from ptq_cli.core.formats import PerAxis
        >>> tiny = QuantParameters(np.float32([1e-9, 1.0]), np.zeros(2, np.int64), INT8_NARROW, PerAxis(0))
        >>> wide, channels = fit_bias(tiny, 1e-3, np.float32([100.0, 0.5]), np.array([False, False]))
        >>> channels, bool(wide.scale[0] > 1e-9), float(wide.scale[1])
        (1, True, 1.0)
        >>> fine, channels = fit_bias(tiny, 1e-3, np.float32([0.0, 0.5]), np.array([False, True]))
        >>> channels, bool(fine.scale[1] < 1e-6)
        (0, True)
    """
    magnitude = np.abs(bias.astype(np.float64)).reshape(-1)
    if not parameters.scale.ndim:
        magnitude = np.max(magnitude, initial=0.0)
    needed = np.maximum(magnitude, SMALLEST_BIAS) / (input_scale * LARGEST_BIAS)
    scale = parameters.scale.astype(np.float64)
    widened = (needed > scale) & ~zero
    refined = zero & (magnitude > 0.0)
    fitted = np.asarray(np.where(widened | refined, needed, scale), dtype=np.float32)
    return replace(parameters, scale=fitted), int(np.count_nonzero(widened))


@contextlib.contextmanager
def constant(value: ir.Value) -> Iterator[FloatArray]:
    """Yield a constant's values, and let go of them at the end: a large model is looked at in parts.

    Raises:
        ValueError: the value is no constant; a plan names constants only.
    """
    with mapped(value) as array:
        yield np.asarray(array, dtype=np.float32)
