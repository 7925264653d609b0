"""Placements for tests that have a recipe and a graph, and no run."""

from pathlib import Path

import onnx_ir as ir

from ptq_cli.placement.placed_graph import Placement, place
from ptq_cli.placement.tensor_settings import tensor_recipe
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.recipe.schema import Recipe

# A target's table: ort-cpu, with the integers that the quantizers alone make.
PLAIN_WEIGHTS = Path(__file__).parent / "contracts" / "plain_weights.toml"


def placed(model: ir.Model, recipe: Recipe, target: Target | str = "ort-cpu") -> Placement:
    """Return what is quantized and by which quantizers; the target is not the recipe's."""
    found = load_target(target) if isinstance(target, str) else target
    return place(model, make_plan(model, found), found, tensor_recipe(recipe))
