"""Changes that a tuning may try: activations in 16 bits, integer weights alone, and slow rungs late."""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ptq_cli.core.formats import BY_NAME, BYTE
from ptq_cli.models.graph_reading import every_node, input_at, rank_of
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.check import are_plain, weight_family
from ptq_cli.recipe.declaration import ROUND
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import LATENCY, ActivationSettings, WeightSettings
from ptq_cli.recover.rung_work import takes_long

_WIDE = 16


def wide_format(target: Target, settings: ActivationSettings) -> str:
    """The integers of 16 bits that a target computes with; an empty string if there are none.

    Where the recipe asks for another quantizer or a type of its own, nothing is chosen.
    """
    own = target.activation.integers
    if _says_how(settings) or own.bits == _WIDE:
        return ""
    formats = [name for name in target.activation.formats if BY_NAME[name].bits == _WIDE]
    return min(formats, key=lambda name: BY_NAME[name].signed != own.signed, default="")


def _says_how(settings: ActivationSettings) -> bool:
    return any((settings.dtype, settings.bits, settings.quantizer not in (None, "scaled")))


def why_not_wide(target: Target, settings: ActivationSettings) -> str:
    """Why activations of 16 bits are not tried; an empty string if they are.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> print(why_not_wide(load_target("ort-cpu"), ActivationSettings()))
        16 bits were not tried: target ort-cpu computes them in float between Q/DQ nodes, which takes longer \
than float alone
    """
    if wide_format(target, settings):
        return ""
    simulated = any(BY_NAME[name].bits == _WIDE for name in target.activation.simulated)
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
    """The tensors whose parameters decide what some layers read and make, in graph order."""
    found: dict[str, None] = {}
    for node in every_node(model.graph):
        if (node.name or "") not in layers:
            continue
        for value in (*node.inputs, *node.outputs):
            site = plan.activations.get(value.name or "") if value is not None else None
            if site is not None:
                found[site.source] = None
    return tuple(found)


# Values of a weight that share a scale where only weights are quantized: the size of the presets.
WEIGHT_BLOCK = 32
_MATRIX = 2


def weight_only_candidates(model: ir.Model, plan: Plan, target: Target, recipe: Recipe) -> tuple[str, ...]:
    """The layers in integers whose weight alone the target could read in blocks, in graph order.

    There are none where layers are placed by their latency: their kernels were not measured.
    """
    if not are_plain(recipe.weights, recipe.activations) or recipe.export.prefer == LATENCY:
        return ()
    bits = recipe.weights.bits or ScaledWeights().bits
    names, found = {layer.name for layer in plan.layers if layer.quantized}, []
    for node in every_node(model.graph):
        rule = target.op.get(node.op_type) if node.name in names else None
        if rule is None or rule.kind != "compute" or rule.blocks is None:
            continue
        weight = input_at(node, rule.weight)
        is_matrix = weight is not None and weight.const_value is not None and rank_of(weight) == _MATRIX
        if is_matrix and WEIGHT_BLOCK in rule.blocks.sizes and bits in rule.blocks.bits:
            found.append(node.name or "")
    return tuple(found)


def slow_rungs(rungs: Sequence[str], model: ir.Model, plan: Plan, weights: WeightSettings) -> tuple[str, ...]:
    """Those of some rungs that are tried late.

    With fewer than 8 bits the weights lose most of what is lost: their rungs come first whatever they take.
    """
    family = weight_family(weights)
    if not isinstance(family, ScaledWeights) or family.bits < BYTE or not takes_long(model, plan):
        return ()
    return tuple(rung for rung in rungs if rung == ROUND)
