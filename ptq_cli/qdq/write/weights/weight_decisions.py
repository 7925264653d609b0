"""What is decided of one weight: its scales, those that its biases need, and its integers."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.numbers.arithmetic import FloatArray, QuantParameters
from ptq_cli.core.numbers.pair_sums import exceeds_pairs, widened_for_pairs
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.weights.magnitudes import magnitudes_of
from ptq_cli.qdq.write.weights.outliers import Outlier, find_outlier
from ptq_cli.qdq.write.weights.streamed_weights import Keep
from ptq_cli.qdq.write.weights.weight_quantizer import StoredWeight, WeightQuantizer, granularity_of

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
        >>> from ptq_cli.core.numbers.formats import INT8_NARROW
        >>> from ptq_cli.core.numbers.granularity import PerAxis
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
