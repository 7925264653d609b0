"""Parameters of every site of a plan: decided once, before the graph is touched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import FloatArray, QuantParameters
from ptq_cli.plan.sites import ActivationSite, BiasSite, Plan, WeightSite
from ptq_cli.qdq.write.integer_storage import Keep, as_it_is
from ptq_cli.qdq.write.weight_decisions import (
    Bias,
    DecidedWeight,
    Outlier,
    constant,
    decide_weight,
    require_finite,
)
from ptq_cli.qdq.write.weight_quantizer import ScaledQuantizer, StoredWeight, WeightQuantizer
from ptq_cli.recipe.sections import AmaxSettings

Decide = Callable[[ActivationSite], QuantParameters]
QuantizerOf = Callable[[WeightSite], WeightQuantizer]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Scale and zero point of every site, and what is stored of the weights.

    Attributes:
        activations: by tensor name.
        weights: by site; a weight of values from a codebook has none.
        widened: names of weights whose scale was widened for their bias, with how many channels.
        unsearched: names of weights whose method had only one candidate in every channel.
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
        keep: is given what is stored of each weight, and returns it from where it is kept.

    Raises:
        InvalidOnnxError: a weight or bias holds NaN or Inf.
    """
    by_source: dict[str, QuantParameters] = {}
    for site in plan.activations.values():
        if site.source not in by_source:
            by_source[site.source] = decide(site)
    activations = {name: by_source[site.source] for name, site in plan.activations.items()}
    constants = model.graph.initializers
    for name in dict.fromkeys(site.tensor for site in plan.biases):
        with constant(constants[name]) as array:
            require_finite(array, name)
    biases = {
        bias.weight: Bias(constants[bias.tensor], activations[bias.activation].scale) for bias in plan.biases
    }
    readers: dict[str, list[WeightSite]] = {}
    for weight_site in plan.weights:
        readers.setdefault(weight_site.tensor, []).append(weight_site)
    decided: dict[WeightSite, DecidedWeight] = {}
    for name, sites in readers.items():
        # A large weight is read from its file once: all that is asked of it is asked here.
        with constant(constants[name]) as weight:
            decided |= decide_weight(weight, {site: quantizer_of(site) for site in sites}, biases, keep)
    found = {site: decided[site] for site in plan.weights}
    return Parameters(
        activations=activations,
        weights={site: item.parameters for site, item in found.items() if item.parameters is not None},
        widened={site.tensor: item.widened for site, item in found.items() if item.widened},
        unsearched=tuple(site.tensor for site, item in found.items() if item.unsearched),
        stored={site: item.stored for site, item in found.items()},
        outliers={site.tensor: item.outlier for site, item in found.items() if item.outlier is not None},
    )


def bias_scale(site: BiasSite, parameters: Parameters) -> FloatArray:
    """Return a bias's scale, ``s_input * s_weight`` in float32, as the integer kernels compute it.

    Shapes:
        (C,), or () where the weight has one scale.
    """
    product: FloatArray = (
        parameters.activations[site.activation].scale * parameters.weights[site.weight].scale
    ).astype(np.float32)
    return product
