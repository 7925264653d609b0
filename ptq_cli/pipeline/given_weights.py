"""Weights that models of one folder share: decided with the first of them, and given to the others."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.decide import LARGEST_BIAS
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.plan.sites import BiasSite, WeightSite
from ptq_cli.qdq.write.site_parameters import (
    DecidedBias,
    DecidedConstants,
    DecidedWeight,
    Parameters,
    bias_scale,
)
from ptq_cli.recover.layer_state import bias_values
from ptq_cli.recover.quantized_layer import DecidedModel, QuantizedLayer, quantized_layers

_Floats = npt.NDArray[np.float64]
CLOSE = 1e-6  # a float32 keeps a number to a share of 6e-8


@dataclass(frozen=True)
class _Bias:
    """A layer's bias in real units, and its step, which is 0 of a bias in floats."""

    values: _Floats
    step: _Floats


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """What was decided of a layer.

    Attributes:
        bias: None if there is none that could be changed.
        nearest: the bias before anything was recovered.
    """

    weight: DecidedWeight
    bias: _Bias | None
    nearest: _Bias | None


@dataclass(frozen=True)
class GivenWeights:
    """The weights of a model that were decided with an earlier one.

    Attributes:
        left: number of layers whose weights can still be chosen.
    """

    sites: tuple[WeightSite, ...] = ()
    left: int = 0


class DecidedWeights:
    """The weights of models that belong together, by their floats and by how they are quantized.

    Only layers whose weights can be chosen again are in it: all others are rounded to nearest, which gives
    the same integers in each model.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _Decision] = {}
        self._nearest: dict[bytes, _Bias | None] = {}

    def give(self, made: DecidedModel, float_model: StoredModel) -> tuple[DecidedModel, GivenWeights]:
        """Return a model with what was decided before, and which weights took it.

        A weight keeps its own integers if its bias would not fit into int32 with the scale that was decided.
        """
        graph = float_model.load()
        taken, layers, parameters = [], _layers(graph, made), made.parameters
        for key, layer in layers:
            # Before anything is replaced: what rounding to nearest gives tells later whether two biases
            # were equal.
            nearest = _bias(graph, made.parameters, layer)
            self._nearest.setdefault(key, nearest)
            found = self._known.get(key)
            changes = _changes(made.parameters, layer, found, nearest) if found is not None else None
            if changes is not None:
                parameters = parameters.changed(changes)
                taken.append(layer.site)
        given = GivenWeights(tuple(taken), left=len(layers) - len(taken))
        return replace(made, parameters=parameters), given

    def learn(self, made: DecidedModel, float_model: StoredModel) -> None:
        """Keep the weights that are not known yet, as the model has them."""
        graph = float_model.load()
        for key, layer in _layers(graph, made):
            if key not in self._known:
                self._known[key] = _Decision(
                    weight=made.parameters.decided[layer.site],
                    bias=_bias(graph, made.parameters, layer),
                    nearest=self._nearest[key],
                )


def _layers(graph: ir.Model, made: DecidedModel) -> list[tuple[bytes, QuantizedLayer]]:
    """Return the layers whose weights can be chosen again, each with a digest of the weight and its form."""
    layers, _ = quantized_layers(graph, made)
    found = []
    for layer in layers.values():
        # Names differ between files that hold the same weight; how it is quantized may not.
        digest = hashlib.sha256(f"{replace(layer.site, tensor='', node='')}".encode())
        with mapped(graph.graph.initializers[layer.site.tensor]) as weight:
            digest.update(f"{weight.dtype} {weight.shape}".encode())
            digest.update(np.ascontiguousarray(weight).tobytes())
        found.append((digest.digest(), layer))
    return found


def _bias(graph: ir.Model, parameters: Parameters, layer: QuantizedLayer) -> _Bias | None:
    values = bias_values(graph, parameters, layer)
    if values is None:
        return None
    step = np.zeros(1)
    if isinstance(layer.bias, BiasSite):
        step = parameters.biases[layer.bias].scale.astype(np.float64)
    return _Bias(values, step)


def _changes(
    parameters: Parameters, layer: QuantizedLayer, decision: _Decision, nearest: _Bias | None
) -> DecidedConstants | None:
    """Return a decision as constants of a layer; None if it does not fit the layer."""
    own, found = parameters.decided[layer.site], decision.weight.parameters
    if found is None or own.parameters is None or found.scale.shape != own.parameters.scale.shape:
        return None
    weights = {layer.site: replace(own, parameters=found, stored=decision.weight.stored)}
    if layer.bias is None or nearest is None:
        return DecidedConstants(decided=weights)
    # A recovered bias belongs to the layer that it was recovered in: one with another float bias keeps
    # its own.
    bias = decision.bias if decision.bias is not None and _is_same(decision.nearest, nearest) else nearest
    if isinstance(layer.bias, str):
        return DecidedConstants(decided=weights, floats={layer.bias: bias.values.astype(np.float32)})
    if layer.parameters is None:
        return None
    made = DecidedBias.of(bias.values, bias_scale(layer.parameters, found))
    if np.abs(made.integers.astype(np.int64)).max(initial=0) > LARGEST_BIAS:
        return None
    return DecidedConstants(decided=weights, biases={layer.bias: made})


def _is_same(one: _Bias | None, other: _Bias) -> bool:
    """Tell whether two biases are one in floats, each rounded with its own step."""
    if one is None or one.values.shape != other.values.shape:
        return False
    # Each was rounded to its own step, so two equal float biases may be a step of each apart.
    tolerance = one.step + other.step + CLOSE * np.abs(other.values)
    return bool((np.abs(one.values - other.values) <= tolerance).all())
