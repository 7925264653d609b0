"""Parameters of every site of a plan: decided once, before the graph is touched."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import ZERO_AMAX, FloatArray, QuantParameters
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.granularity import Granularity
from ptq_cli.models.stored import mapped
from ptq_cli.plan.sites import ActivationSite, BiasSite, Plan, WeightSite
from ptq_cli.qdq.outliers import Outlier, find_outlier
from ptq_cli.qdq.spill import Keep, as_it_is
from ptq_cli.qdq.weights import ScaledQuantizer, StoredWeight, WeightQuantizer
from ptq_cli.recipe.schema import AmaxSettings

LARGEST_BIAS = 2**30
"""In steps. Half of int32: the other half is for the products that the kernel adds to it."""

SMALLEST_BIAS = 1e-20
"""Keeps the scale of a smaller one a normal float32."""

Decide = Callable[[ActivationSite], QuantParameters]
QuantizerOf = Callable[[WeightSite], WeightQuantizer]


@dataclass(frozen=True)
class Parameters:
    """Scale and zero point of every site, and what is stored of the weights.

    Attributes:
        activations: by tensor name.
        weights: by site; a weight of values from a codebook has none.
        widened: names of weights whose scale was widened for their bias, with how many channels.
        unsearched: names of weights whose method had one candidate only in every channel.
        stored: what the file holds of each weight.
        outliers: by a weight's name, the worst that leaves most of its values only a few steps.
    """

    activations: Mapping[str, QuantParameters]
    weights: Mapping[WeightSite, QuantParameters]
    widened: Mapping[str, int]
    unsearched: tuple[str, ...] = ()
    stored: Mapping[WeightSite, StoredWeight] = field(default_factory=dict)
    outliers: Mapping[str, Outlier] = field(default_factory=dict)


def _by_max(_site: WeightSite) -> WeightQuantizer:
    return ScaledQuantizer(AmaxSettings(weight_method="max"))


def decide_all(
    model: ir.Model,
    plan: Plan,
    decide: Decide,
    quantizer_of: QuantizerOf = _by_max,
    keep: Keep = as_it_is,
) -> Parameters:
    """Return the parameters of a plan's sites, and its weights as the file will hold them.

    Args:
        model: the float model, which holds the weights.
        plan: what is quantized.
        decide: gives an activation's parameters from its statistics.
        quantizer_of: gives the quantizer of a weight.
        keep: is given the integers of each weight, and returns them from where they wait to be written.

    Raises:
        InvalidOnnxError: a weight or bias holds NaN or Inf.
    """
    by_source: dict[str, QuantParameters] = {}
    for site in plan.activations.values():
        if site.source not in by_source:
            by_source[site.source] = decide(site)
    activations = {name: by_source[site.source] for name, site in plan.activations.items()}
    constants = model.graph.initializers
    for name in plan.constants:
        with constant(constants[name]) as array:
            _require_finite(array, name)
    quantizers = {site: quantizer_of(site) for site in plan.weights}
    choices, outliers = {}, {}
    for weight_site, item in quantizers.items():
        with constant(constants[weight_site.tensor]) as weight:
            choices[weight_site] = item.choose(weight, weight_site)
            chosen = choices[weight_site].parameters
            # Blocks have scales of their own, which is what they are for.
            if chosen is not None and weight_site.block_size is None:
                outliers[weight_site.tensor] = find_outlier(weight, chosen)
    weights = {site: item.parameters for site, item in choices.items() if item.parameters is not None}
    widened = _fit_biases(constants, plan, quantizers, activations, weights)
    stored = {}
    for weight_site, item in quantizers.items():
        with constant(constants[weight_site.tensor]) as weight:
            found = item.store(weight, weight_site, weights.get(weight_site))
        stored[weight_site] = replace(found, integers=keep(found.integers))
    unsearched = tuple(site.tensor for site, item in choices.items() if item.unsearched)
    worst = {name: outlier for name, outlier in outliers.items() if outlier is not None}
    return Parameters(activations, weights, widened, unsearched, stored, worst)


def _fit_biases(
    constants: Mapping[str, ir.Value],
    plan: Plan,
    quantizers: Mapping[WeightSite, WeightQuantizer],
    activations: Mapping[str, QuantParameters],
    weights: dict[WeightSite, QuantParameters],
) -> dict[str, int]:
    """Change the parameters of weights where their biases ask for it, and return which were widened."""
    widened: dict[str, int] = {}
    for bias in plan.biases:
        found = weights[bias.weight]
        input_scale = float(activations[bias.activation].scale)
        with constant(constants[bias.weight.tensor]) as weight, constant(constants[bias.tensor]) as array:
            zero = weight_amax(weight, found.granularity) <= ZERO_AMAX
            fitted, channels = fit_bias(found, input_scale, array, zero)
        weights[bias.weight] = quantizers[bias.weight].fit(fitted)
        if channels:
            widened[bias.weight.tensor] = channels
    _tie_scales(quantizers, weights)
    return widened


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


def _require_finite(array: FloatArray, name: str) -> None:
    if not np.isfinite(array).all():
        raise InvalidOnnxError(
            f"the constant '{name}' holds NaN or Inf, which no integer stands for",
            hint="was the model trained to the end? look at this parameter where it was made",
        )


def weight_amax(weight: FloatArray, granularity: Granularity) -> FloatArray:
    """Return the largest magnitude of a weight, or of each of its channels.

    Shapes:
        As the granularity's scale.

    Example:
        >>> from ptq_cli.core.granularity import PerAxis
        >>> weight_amax(np.float32([[1.0, -2.0], [0.0, 0.5]]), PerAxis(0)).tolist()
        [2.0, 0.5]
    """
    amax: FloatArray = np.max(np.abs(weight), axis=granularity.reduced_axes(weight.shape), initial=0.0)
    return amax


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
        >>> from ptq_cli.core.granularity import PerAxis
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


def bias_scale(site: BiasSite, parameters: Parameters) -> FloatArray:
    """Return a bias's scale, ``s_input * s_weight`` in float32, as the integer kernels compute it.

    Shapes:
        (C,), or () where the weight has one scale.
    """
    product: FloatArray = (
        parameters.activations[site.activation].scale * parameters.weights[site.weight].scale
    ).astype(np.float32)
    return product


@contextlib.contextmanager
def constant(value: ir.Value) -> Iterator[FloatArray]:
    """Yield a constant's values, and let go of them at the end: a large model is looked at in parts.

    Raises:
        ValueError: the value is no constant; a plan names constants only.
    """
    with mapped(value) as array:
        yield np.asarray(array, dtype=np.float32)
