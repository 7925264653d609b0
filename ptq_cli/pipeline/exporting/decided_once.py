"""Weights that several models hold: the first model decides them, and the others take what it decided."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.decoding import decode
from ptq_cli.core.errors import InputFileError, ReportError, first_line
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.files.stored import StoredModel, release
from ptq_cli.pipeline.calibration.provenance import source_bytes
from ptq_cli.pipeline.exporting.exported_file import Pair, report_layers
from ptq_cli.pipeline.exporting.quantized_graph import QuantizedGraph, free_scales
from ptq_cli.pipeline.run_directory import RunDirectory
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.metadata import AMAX_METHOD, AMAX_PERCENTILE, LAYERS, OVERRIDES, QUANTIZERS, WEIGHT_AMAX
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.write.weight_decisions import LARGEST_BIAS
from ptq_cli.recipe.recipe_layers import relative_location
from ptq_cli.recovery.quantized_layer import (
    QuantizedLayer,
    constant_array,
    quantized_layers,
    replace_constants,
)
from ptq_cli.report.document.report_document import AmaxSummary, LayerEntry, ModelEntry, ModelSummary

Floats = npt.NDArray[np.float64]
CLOSE = 1e-6
"""A float32 keeps a number to a share of 6e-8."""


@dataclass(frozen=True)
class _Bias:
    """A layer's bias in real units, and its step, which is 0 of a bias in floats."""

    values: Floats
    step: Floats


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """A layer's constants.

    Attributes:
        values, scale: of the weight, as a graph holds them.
        bias: None if there is none that could be changed.
        nearest: the bias before anything was recovered.
    """

    values: Array
    scale: Array
    bias: _Bias | None
    nearest: _Bias | None


@dataclass(frozen=True)
class GivenWeights:
    """The weights of a model that were decided with an earlier one.

    Attributes:
        sites: these weights.
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

    def give(self, made: QuantizedGraph, float_model: StoredModel) -> GivenWeights:
        """Write what was decided into a model, and return which weights took it.

        A weight keeps its own integers if its bias would not fit into int32 with the scale that was decided.

        Args:
            made: the quantized model, whose constants are changed.
            float_model: that it was made from.
        """
        taken, layers = [], _layers(made, float_model)
        for key, layer in layers:
            nearest = _bias(made, layer)
            # Before anything is replaced: what rounding to nearest gives tells later whether two biases
            # were equal.
            self._nearest.setdefault(key, nearest)
            found = self._known.get(key)
            constants = _constants(made, layer, found, nearest) if found is not None else None
            if constants is not None:
                replace_constants(made.model, constants)
                taken.append(layer.site)
        return GivenWeights(tuple(taken), left=len(layers) - len(taken))

    def learn(self, made: QuantizedGraph, float_model: StoredModel) -> None:
        """Keep the weights that are not known yet, as the model holds them."""
        for key, layer in _layers(made, float_model):
            if key not in self._known:
                self._known[key] = _Decision(
                    values=constant_array(made.model, layer.weight.values),
                    scale=constant_array(made.model, layer.weight.scale),
                    bias=_bias(made, layer),
                    nearest=self._nearest[key],
                )


def without(made: QuantizedGraph, sites: tuple[WeightSite, ...]) -> QuantizedGraph:
    """Return a quantized model whose plan does not hold some weights, so that nothing chooses them again."""
    kept = tuple(site for site in made.plan.weights if site not in set(sites))
    return replace(made, plan=replace(made.plan, weights=kept))


def _layers(made: QuantizedGraph, float_model: StoredModel) -> list[tuple[bytes, QuantizedLayer]]:
    """Return the layers whose weights can be chosen again, each with a digest of the weight and its form."""
    graph = float_model.load()
    layers, _ = quantized_layers(TwinGraphs(graph, made.model), made.plan, free_scales(made.placement))
    found = []
    for layer in layers.values():
        # Names differ between files that hold the same weight; how it is quantized may not.
        form = replace(layer.site, tensor="", node="")
        digest = hashlib.sha256(f"{form} {layer.weight.multiples}".encode())
        # One constant at a time: a folder's models together may be larger than the memory.
        with mapped(graph.graph.initializers[layer.site.tensor]) as weight:
            digest.update(f"{weight.dtype} {weight.shape}".encode())
            digest.update(np.ascontiguousarray(weight).tobytes())
        found.append((digest.digest(), layer))
    return found


def _bias(made: QuantizedGraph, layer: QuantizedLayer) -> _Bias | None:
    if layer.bias is None:
        return None
    values = constant_array(made.model, layer.bias.values).astype(np.float64)
    if not layer.bias.scale:
        return _Bias(values, np.zeros(1))
    step = constant_array(made.model, layer.bias.scale).astype(np.float64)
    return _Bias(values * step, step)


def _constants(
    made: QuantizedGraph, layer: QuantizedLayer, decision: _Decision, nearest: _Bias | None
) -> Mapping[str, Array] | None:
    """Return the constants of a layer for a decided weight; None if they do not fit the layer."""
    held = [constant_array(made.model, name) for name in (layer.weight.values, layer.weight.scale)]
    # Another file may store the weight in another form, such as padded channels: then it keeps its own
    # integers.
    if [item.shape for item in held] != [decision.values.shape, decision.scale.shape]:
        return None
    constants = {layer.weight.values: decision.values, layer.weight.scale: decision.scale}
    if layer.bias is None or nearest is None:
        return constants
    # A recovered bias belongs to the layer that it was recovered in: one with another float bias keeps
    # its own.
    bias = decision.bias if decision.bias is not None and _is_same(decision.nearest, nearest) else nearest
    if not layer.bias.scale:
        return constants | {layer.bias.values: bias.values}
    if layer.parameters is None:
        return None
    scale = decision.scale.reshape(nearest.step.shape).astype(np.float32)
    # ONNX's rule for an int32 bias, in the float32 that the kernel multiplies in.
    step = (layer.parameters.scale * scale).astype(np.float32)
    integers = np.rint(bias.values / step.astype(np.float64))
    if np.abs(integers).max(initial=0) > LARGEST_BIAS:
        return None
    return constants | {layer.bias.values: integers.astype(np.int32), layer.bias.scale: step}


def _is_same(one: _Bias | None, other: _Bias) -> bool:
    """Tell whether two biases are one in floats, each rounded with its own step."""
    if one is None or one.values.shape != other.values.shape:
        return False
    # Each was rounded to its own step, so two equal float biases may be a step of each apart.
    tolerance = one.step + other.step + CLOSE * np.abs(other.values)
    return bool((np.abs(one.values - other.values) <= tolerance).all())


# What the metadata of a quantized model say of it for a report: its ranges, its layers, what is unusual.


def model_summary(model: str | None, run: RunDirectory, pair: Pair, calibration: Calibration) -> ModelSummary:
    """Return the two models by file, hash and size.

    Args:
        model: the file that the float model was made from, if one is known.
        run: names the float model.
        pair: both.
        calibration: names the files that the float model was made from.
    """
    source = relative_location(model, Path.cwd()) if model else run.float_model.name
    return ModelSummary(
        source,
        _model_file(run.float_model.name, pair.float_model),
        _model_file(pair.quantized_name, pair.quantized_model),
        source_bytes(model, calibration.provenance.settings, run),
    )


def _model_file(name: str, model: StoredModel) -> ModelEntry:
    return ModelEntry(name, model.sha256, model.size)


def amax_summary(origin: Mapping[str, str], name: str) -> AmaxSummary:
    """Return how the ranges were decided, as the model says.

    Args:
        origin: the quantized model's metadata.
        name: of its file.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
    settings: dict[str, float] = {}
    if AMAX_PERCENTILE in origin:
        settings["percentile"] = _percentile(origin[AMAX_PERCENTILE], name)
    if OVERRIDES in origin:
        settings["overrides"] = len(_listed(origin[OVERRIDES], name))
    method, weights = origin.get(AMAX_METHOD, "unknown"), origin.get(WEIGHT_AMAX, "max")
    text = method if weights == "max" else f"{method}, weights by {weights}"
    if QUANTIZERS in origin:
        text += f"; {origin[QUANTIZERS]}"
    return AmaxSummary(text, settings)


def _percentile(text: str, name: str) -> float:
    try:
        percentile = float(text)
    except ValueError as error:
        raise _damaged(name, AMAX_PERCENTILE, error) from error
    if not 0 < percentile <= 100:
        raise _damaged(name, AMAX_PERCENTILE, ValueError(f"{text} is not between 0 and 100"))
    return percentile


def _listed(text: str, name: str) -> list[object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, OVERRIDES, error) from error
    if not isinstance(found, list):
        raise _damaged(name, OVERRIDES, ValueError("expected a list"))
    return found


def plan_of(model: StoredModel, target: Target) -> Plan:
    """Return what a target would quantize of a serialized model.

    Raises:
        NothingToQuantizeError: the target can quantize nothing.
    """
    graph = model.load()
    plan = make_plan(graph, target)
    release(graph)
    return plan


def evaluated_layers(plan: Plan, origin: Mapping[str, str], name: str) -> tuple[LayerEntry, ...]:
    """Return where each layer of a quantized model runs.

    Args:
        plan: of the float model, for the target that it was exported for.
        origin: the quantized model's metadata.
        name: of its file.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
    # Which quantizers it was exported with, the recipe at hand need not say.
    reasons = unusual_layers(origin, name)
    return tuple(
        LayerEntry(layer.name, layer.op, not reasons[layer.name], reasons[layer.name])
        if layer.name in reasons
        else layer
        for layer in report_layers(plan)
    )


def unusual_layers(origin: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the layers that a quantized model computes otherwise than its target alone would have it.

    Each comes with the reason why it is float, which is empty for an integer layer.

    Args:
        origin: the quantized model's metadata.
        name: of its file.

    Raises:
        InputFileError: what the model says of itself is damaged.
    """
    if LAYERS not in origin:
        return {}
    try:
        found = decode(dict[str, list[str]], json.loads(origin[LAYERS]), LAYERS)
    except (ValueError, RecursionError, ReportError) as error:
        raise _damaged(name, LAYERS, error) from error
    return {layer: reason for reason, layers in found.items() for layer in layers}


def _damaged(name: str, key: str, error: Exception) -> InputFileError:
    return InputFileError(
        f"'{name}' has damaged metadata '{key}': {first_line(error)}", hint="run ptq export again"
    )
