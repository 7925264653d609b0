"""Parameters of every site of a plan: decided once, before the graph is touched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.arithmetic import FloatArray, QuantParameters, scale_from_amax
from ptq_cli.core.granularity import Granularity, PerAxis, PerTensor
from ptq_cli.plan.sites import ActivationSite, BiasSite, Plan, WeightSite

LARGEST_BIAS = 2**30
"""In steps. Half of int32: the other half is for the products that the kernel adds to it."""

Decide = Callable[[ActivationSite], QuantParameters]


@dataclass(frozen=True)
class Parameters:
    """Scale and zero point of every site.

    Attributes:
        activations: by tensor name.
        weights: by site.
        widened: names of weights whose scale was widened for their bias, with how many channels.
    """

    activations: Mapping[str, QuantParameters]
    weights: Mapping[WeightSite, QuantParameters]
    widened: Mapping[str, int]


def decide_all(model: ir.Model, plan: Plan, decide: Decide) -> Parameters:
    """Return the parameters of a plan's sites.

    Args:
        model: the float model, which holds the weights.
        plan: what is quantized.
        decide: gives an activation's parameters from its statistics.
    """
    by_source: dict[str, QuantParameters] = {}
    for site in plan.activations.values():
        if site.source not in by_source:
            by_source[site.source] = decide(site)
    activations = {name: by_source[site.source] for name, site in plan.activations.items()}
    initializers = model.graph.initializers
    weights = {site: weight_parameters(constant(initializers[site.tensor]), site) for site in plan.weights}
    widened: dict[str, int] = {}
    for bias in plan.biases:
        input_scale = float(activations[bias.activation].scale)
        values = constant(initializers[bias.tensor])
        weights[bias.weight], channels = fit_bias(weights[bias.weight], input_scale, values)
        if channels:
            widened[bias.weight.tensor] = channels
    return Parameters(activations, weights, widened)


def weight_parameters(weight: FloatArray, site: WeightSite) -> QuantParameters:
    """Return the symmetric parameters of a weight: amax by max, per output channel where it has an axis.

    Shapes:
        weight: any; scale: (C,) along the site's axis, or ().

    Edge case:
        An all-zero channel gets scale 1.

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> site = WeightSite("w", "layer", 1, INT8_NARROW, axis=0)
        >>> weight_parameters(np.array([[1.27, 0.0], [0.0, 0.0]], np.float32), site).scale.tolist()
        [0.009999999776482582, 1.0]
    """
    granularity: Granularity = PerTensor() if site.axis is None else PerAxis(site.axis)
    amax = np.max(np.abs(weight), axis=granularity.reduced_axes(weight.shape), initial=0.0)
    scale = scale_from_amax(amax, site.format)
    return QuantParameters(scale, np.zeros(scale.shape, np.int64), site.format, granularity)


def fit_bias(
    parameters: QuantParameters, input_scale: float, bias: FloatArray
) -> tuple[QuantParameters, int]:
    """Return a weight's parameters with its scale widened where the bias would not fit into int32.

    An int32 bias has the scale ``s_input * s_weight``. A channel with tiny weights and a large bias, as
    BatchNorm folding makes them, would overflow it. A channel of zeros has no scale of its own to lose, and
    takes the one that holds its bias most finely.

    Returns:
        The parameters, and how many channels with weights were widened.

    Shapes:
        bias: (C,).

    Example:
        >>> from ptq_cli.core.formats import INT8_NARROW
        >>> tiny = QuantParameters(np.float32([1e-9, 1.0]), np.zeros(2, np.int64), INT8_NARROW, PerAxis(0))
        >>> wide, channels = fit_bias(tiny, 1e-3, np.float32([100.0, 0.5]))
        >>> channels, bool(wide.scale[0] > 1e-9), float(wide.scale[1])
        (1, True, 1.0)
    """
    by_channel = np.abs(bias.astype(np.float64)) / (input_scale * LARGEST_BIAS)
    needed = by_channel if parameters.scale.ndim else np.max(by_channel, initial=0.0)
    scale = parameters.scale.astype(np.float64)
    wide = np.asarray(np.where(needed > scale, needed, scale), dtype=np.float32)
    channels = int(np.count_nonzero(needed > scale))
    return (replace(parameters, scale=wide), channels) if channels else (parameters, 0)


def bias_scale(site: BiasSite, parameters: Parameters) -> FloatArray:
    """Return a bias's scale, ``s_input * s_weight`` in float32, as the integer kernels compute it.

    Shapes:
        (C,), or () where the weight has one scale.
    """
    product: FloatArray = (
        parameters.activations[site.activation].scale * parameters.weights[site.weight].scale
    ).astype(np.float32)
    return product


def constant(value: ir.Value) -> FloatArray:
    """Return a constant's values.

    Raises:
        ValueError: the value is no constant; a plan names constants only.
    """
    if value.const_value is None:
        raise ValueError(f"'{value.name}' is no constant")
    array: npt.NDArray[np.float32] = np.asarray(value.const_value.numpy(), dtype=np.float32)
    return array
