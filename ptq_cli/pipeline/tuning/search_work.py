"""Rungs whose search takes so long that what costs little speed is tried before them."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.plan.sites import Plan
from ptq_cli.recipe.chosen_family import weight_family
from ptq_cli.recipe.quantizer_settings import ScaledWeights
from ptq_cli.recipe.recovery_rungs import OF_WEIGHTS
from ptq_cli.recipe.sections.quantization_sections import WeightSettings

SLOW = 8e10
"""Products of a search, about five minutes of one core for each rung."""
BITS = 8
"""With fewer, the weights lose most of what is lost, and their rungs come first whatever they take."""


def slow_rungs(rungs: Sequence[str], model: ir.Model, plan: Plan, weights: WeightSettings) -> tuple[str, ...]:
    """Return those of some rungs that are tried late.

    Args:
        rungs: in the order in which they run.
        model: the float model.
        plan: of the quantized one.
        weights: of the recipe.
    """
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
