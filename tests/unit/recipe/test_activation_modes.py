"""What a recipe may do with activations, and when that needs data."""

from typing import Any

import pytest

from ptq_cli.core.errors import PtqError, RecipeValueError, UnknownNameError
from ptq_cli.recipe.activation_modes import needs_ranges
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.recipe_layers import merge_layers, table_layer
from ptq_cli.recipe.schema import Recipe


def recipe_of(table: dict[str, Any]) -> Recipe:
    from pathlib import Path

    return check_recipe(merge_layers([table_layer(table, Path(), "a test")]))


@pytest.mark.parametrize(
    ("override", "needed"),
    [
        ([], False),
        ([{"match": "head", "activations": {"mode": "static"}}], True),
        ([{"match": "head", "activations": {"dtype": "int8"}}], False),
        ([{"match": "head", "quantize": False}], False),
    ],
)
def test_ranges_are_needed_only_where_an_activation_may_be_static(
    override: list[dict[str, Any]], needed: bool
) -> None:
    assert needs_ranges(recipe_of({"activations": {"mode": "float"}, "override": override})) is needed


@pytest.mark.parametrize(
    ("table", "error", "message"),
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
    ],
)
def test_a_mode_that_makes_no_sense_is_refused(
    table: dict[str, Any], error: type[PtqError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        recipe_of(table)
    assert caught.value.hint
