"""Which layers may do something else with their activations than integers in measured ranges."""

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at, rank_of
from ptq_cli.plan.layers.dynamic_layers import dynamic_refusal
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.activation_modes import STATIC, mode_of
from ptq_cli.recipe.chosen_family import weight_family
from ptq_cli.recipe.quantizer_settings import ScaledWeights
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.quantization_sections import LATENCY

BLOCK = 32
"""Values of a weight that share a scale where only weights are quantized: the size of the presets."""
MATRIX = 2


def dynamic_candidates(model: ir.Model, plan: Plan, target: Target, recipe: Recipe) -> tuple[str, ...]:
    """Return the layers that could find the ranges of what they read at each run and do not, in graph order.

    Args:
        model: the float model.
        plan: of the quantized one.
        target: whose rules made it.
        recipe: with another quantizer of weights, or another mode for all layers, none could.
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

    Args:
        model: the float model.
        plan: of the quantized one.
        target: whose rules made it.
        recipe: where layers are placed by their latency, there are none: their kernels were not measured.
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
