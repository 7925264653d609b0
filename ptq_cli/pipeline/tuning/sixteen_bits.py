"""Activations in 16 bits: whether a target computes with them, and which ones a layer reads and makes."""

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.core.formats import BY_NAME
from ptq_cli.models.graph_reading import input_at, rank_of
from ptq_cli.plan.dynamic_layers import dynamic_refusal
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recipe.quantizer_settings import weight_family
from ptq_cli.recipe.recovery_rungs import OF_WEIGHTS, STATIC, mode_of
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import LATENCY, ActivationSettings, WeightSettings

WIDE = 16


def wide_format(target: Target, settings: ActivationSettings) -> str:
    """Return the integers of 16 bits that a target computes with; an empty string if there are none.

    Where the recipe asks for another quantizer or a type of its own, nothing is chosen.
    """
    own = target.activation.integers
    if _says_how(settings) or own.bits == WIDE:
        return ""
    formats = [name for name in target.activation.formats if BY_NAME[name].bits == WIDE]
    return min(formats, key=lambda name: BY_NAME[name].signed != own.signed, default="")


def _says_how(settings: ActivationSettings) -> bool:
    return any((settings.dtype, settings.bits, settings.quantizer not in (None, "scaled")))


def why_not_wide(target: Target, settings: ActivationSettings) -> str:
    """Return why activations of 16 bits are not tried; an empty string if they are.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> print(why_not_wide(load_target("ort-cpu"), ActivationSettings()))
        16 bits were not tried: target ort-cpu computes them in float between Q/DQ nodes, which takes longer \
than float alone
    """
    if wide_format(target, settings):
        return ""
    simulated = any(BY_NAME[name].bits == WIDE for name in target.activation.simulated)
    if _says_how(settings):
        why = "the recipe says how activations are quantized"
    elif simulated:
        why = (
            f"target {target.name} computes them in float between Q/DQ nodes, which takes longer than "
            "float alone"
        )
    else:
        why = f"target {target.name} has no activations of 16 bits to choose"
    return f"16 bits were not tried: {why}"


def activations_of(model: ir.Model, plan: Plan, layers: Collection[str]) -> tuple[str, ...]:
    """Return the tensors whose parameters decide what some layers read and make, in graph order."""
    found: dict[str, None] = {}
    for node in model.graph.all_nodes():
        if (node.name or "") not in layers:
            continue
        for value in (*node.inputs, *node.outputs):
            site = plan.activations.get(value.name or "") if value is not None else None
            if site is not None:
                found[site.source] = None
    return tuple(found)


# Which layers may do something else with their activations than integers in measured ranges.


BLOCK = 32
"""Values of a weight that share a scale where only weights are quantized: the size of the presets."""
MATRIX = 2


def dynamic_candidates(model: ir.Model, plan: Plan, target: Target, recipe: Recipe) -> tuple[str, ...]:
    """Return the layers that could find the ranges of what they read at each run and do not, in graph order.

    With another quantizer of weights, or another mode for all layers, there are none.
    """
    if not _is_plain(recipe):
        return ()
    names = {layer.name for layer in plan.layers if layer.quantized and not layer.dynamic}
    return tuple(
        node.name or ""
        for node in model.graph.all_nodes()
        if node.name in names
        and (rule := target.op.get(node.op_type)) is not None
        and rule.kind == "compute"
        and not rule.dynamic_note
        and not dynamic_refusal(node, rule, target.name)
    )


def weight_only_candidates(model: ir.Model, plan: Plan, target: Target, recipe: Recipe) -> tuple[str, ...]:
    """Return the layers in integers whose weight alone the target could read in blocks, in graph order.

    There are none where layers are placed by their latency: their kernels were not measured.
    """
    if not _is_plain(recipe) or recipe.export.prefer == LATENCY:
        return ()
    bits = recipe.weights.bits or ScaledWeights().bits
    names, found = {layer.name for layer in plan.layers if layer.quantized}, []
    for node in model.graph.all_nodes():
        rule = target.op.get(node.op_type) if node.name in names else None
        if rule is None or rule.kind != "compute" or rule.blocks is None:
            continue
        weight = input_at(node, rule.weight)
        is_matrix = weight is not None and weight.const_value is not None and rank_of(weight) == MATRIX
        if is_matrix and BLOCK in rule.blocks.sizes and bits in rule.blocks.bits:
            found.append(node.name or "")
    return tuple(found)


def _is_plain(recipe: Recipe) -> bool:
    """Tell whether all is measured ranges and evenly spread integers with a scale for each channel."""
    weights, activations = weight_family(recipe.weights), recipe.activations
    scaled = isinstance(weights, ScaledWeights) and weights.block_size is None and weights.dtype is None
    others = [key for key, value in vars(activations).items() if key != "mode" and value is not None]
    return scaled and mode_of(activations) == STATIC and not others


# Rungs whose search takes so long that what costs little speed is tried before them.


SLOW = 8e10
"""Products of a search, about five minutes of one core for each rung."""
BITS = 8
"""With fewer, the weights lose most of what is lost, and their rungs come first whatever they take."""


def slow_rungs(rungs: Sequence[str], model: ir.Model, plan: Plan, weights: WeightSettings) -> tuple[str, ...]:
    """Return those of some rungs that are tried late."""
    family = weight_family(weights)
    if not isinstance(family, ScaledWeights) or family.bits < BITS or search_products(model, plan) < SLOW:
        return ()
    return tuple(rung for rung in rungs if rung in OF_WEIGHTS)


def search_products(model: ir.Model, plan: Plan) -> float:
    """Return how many products the search for a model's integers takes, but for a constant factor.

    Of a layer these are its outputs times the square of its inputs.
    """
    total = 0.0
    for site in plan.weights:
        value = model.graph.initializers.get(site.tensor)
        if value is None or value.shape is None:
            continue
        shape = value.shape.numpy()
        outputs = shape[site.axis] if site.axis is not None else 1
        total += outputs * (float(np.prod(shape)) / outputs) ** 2
    return total
