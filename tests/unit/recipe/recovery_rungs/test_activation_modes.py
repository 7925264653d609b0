"""What a recipe may do with activations, and when that needs data."""

from pathlib import Path
from typing import Any

import pytest

from ptq_cli.core.errors import PtqError, RecipeValueError, UnknownNameError
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.recipe_layers import merge_layers, preset_layer, table_layer
from ptq_cli.recipe.recovery_rungs import needs_ranges
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ActivationSettings
from tests.each_case import each_case


def recipe_of(table: dict[str, Any]) -> Recipe:
    return check_recipe(merge_layers([table_layer(table, Path(), "a test")]))


@pytest.mark.parametrize(
    ("override", "needed"),
    [
        ([], False),
        ([{"match": "head", "activations": {"mode": "static"}}], True),
        ([{"match": "head", "quantize": False}], False),
    ],
)
def test_ranges_are_needed_only_where_an_activation_may_be_static(
    override: list[dict[str, Any]], needed: bool
) -> None:
    assert needs_ranges(recipe_of({"activations": {"mode": "float"}, "override": override})) is needed


def test_a_quantizer_leaves_the_mode_of_a_preset_and_is_refused_beside_it() -> None:
    flags = table_layer({"activations": {"quantizer": "step"}}, Path(), "the command line")
    merged = merge_layers([preset_layer("dynamic_int8"), flags])
    assert merged.activations == ActivationSettings(mode="dynamic", quantizer="step")
    with pytest.raises(RecipeValueError, match=r"'activations\.quantizer' has no effect") as caught:
        check_recipe(merged)
    assert "mode = 'static' quantizes activations" in (caught.value.hint or "")
    static = table_layer({"activations": {"quantizer": "step", "mode": "static"}}, Path(), "flags")
    assert check_recipe(merge_layers([preset_layer("dynamic_int8"), static])).activations.quantizer == "step"


@each_case(
    "table, error, message",
    [
        ({"activations": {"mode": "floot"}}, UnknownNameError, "unknown mode of activations 'floot'"),
        (
            {"activations": {"mode": "float", "dtype": "int8"}},
            RecipeValueError,
            "'activations.dtype' has no effect where 'activations.mode' is 'float'",
        ),
        (
            {"override": [{"match": "a", "activations": {"mode": "float", "quantizer": "step"}}]},
            RecipeValueError,
            "'override.activations.quantizer' has no effect where 'override.activations.mode' is 'float'",
        ),
        (
            {
                "activations": {"mode": "dynamic"},
                "override": [{"match": "a", "activations": {"quantizer": "step"}}],
            },
            RecipeValueError,
            "'override.activations.quantizer' has no effect where 'activations.mode' is 'dynamic'",
        ),
    ],
)
def test_a_mode_that_makes_no_sense_is_refused(
    table: dict[str, Any], error: type[PtqError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        recipe_of(table)
    assert caught.value.hint
