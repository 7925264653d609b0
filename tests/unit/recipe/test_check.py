import dataclasses
import math

import pytest

from ptq_cli.core.errors import RecipeValueError
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.schema import Recipe, decode_recipe
from tests.each_case import each_case

WRONG = {
    "data.batch_size": [(0, "at least 1"), (-3, "at least 1")],
    "calibration.samples": [(0, "at least 1"), (-1, "at least 1")],
    "evaluation.samples": [(0, "at least 1")],
    "amax.percentile": [
        (value, "above 0 and at most 100") for value in (0.0, -1.0, 100.1, math.nan, math.inf, -math.inf)
    ],
    "amax.bins": [(value, "2 to 65536") for value in (1, 0, -5, 65537)],
    "runtime.threads": [(-1, "0 to 1024"), (1025, "0 to 1024")],
}
RIGHT = {
    "data.batch_size": [1, 10**9],
    "calibration.samples": [1, None],
    "evaluation.samples": [1, None],
    "amax.bins": [2, 2048, 65536],
    "amax.percentile": [1e-9, 50.0, 100.0],
    "runtime.threads": [0, 1, 64],
    "gate.max_drop": [{}, {"top1": 0.0}, {"top1": -0.5}, {"top1": math.inf}],
    "gate.min": [{"sqnr_db": -math.inf}],
    "model.input_shape": [{}, {"x": [1]}, {"x": [1, 3, 8, 8]}],
}


def recipe_with(key, value):
    section, _, name = key.partition(".")
    return decode_recipe({section: {name: value}}, "a test")


@each_case("key, value, wanted", [(key, *case) for key, cases in WRONG.items() for case in cases])
def test_number_outside_its_range_is_refused(key, value, wanted):
    with pytest.raises(RecipeValueError) as caught:
        check_recipe(recipe_with(key, value))
    assert caught.value.code == "PTQ-RECIPE-003"
    assert caught.value.message == f"'{key}' is {value}, it must be {wanted}"
    assert caught.value.hint == f"correct '{key}'"


@each_case("key, value", [(key, value) for key, values in RIGHT.items() for value in values])
def test_number_within_its_range_passes(key, value):
    recipe = recipe_with(key, value)
    assert check_recipe(recipe) is recipe


@each_case(
    "override, message",
    [
        ({"match": "", "amax": "mse"}, "[[override]] has neither match nor op"),
        ({"match": "head"}, "the override of 'head' sets nothing"),
        *(
            (
                {"match": "head", key: f"percentile {value}"},
                f"'override.{key}' of 'head' is 'percentile {value}', expected a percentile above 0 and at "
                "most 100",
            )
            for key, value in (("amax", 0.0), ("amax", 100.5), ("weight_amax", "few"))
        ),
    ],
)
def test_override_that_makes_no_sense_is_refused(override, message):
    fine = {"match": "*", "amax": "mse"}
    with pytest.raises(RecipeValueError) as caught:
        check_recipe(decode_recipe({"override": [fine, override]}, "a test"))
    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize("key", ["gate.max_drop", "gate.min"])
def test_limit_that_is_no_number_is_refused(key):
    with pytest.raises(RecipeValueError) as caught:
        check_recipe(recipe_with(key, {"top1": math.nan}))
    assert caught.value.message == f"'{key}.top1' is NaN, expected a number"


@pytest.mark.parametrize("shape", [[], [0, 3], [1, -1]], ids=str)
def test_shape_without_size_is_refused(shape):
    with pytest.raises(RecipeValueError) as caught:
        check_recipe(recipe_with("model.input_shape", {"x": shape}))
    assert caught.value.message == f"'model.input_shape.x' is {shape}, expected sizes of at least 1"
    assert "--set model.input_shape.x=1,3,224,224" in caught.value.hint


def test_a_range_around_0_of_blocks_with_two_ends_is_refused():
    sections = {
        "amax": {"weight_method": "entropy"},
        "weights": {"bits": 4, "block_size": 32, "symmetric": False},
    }
    with pytest.raises(RecipeValueError) as caught:
        check_recipe(decode_recipe(sections, "a test"))
    assert caught.value.message.startswith(
        "'amax.weight_method' is 'entropy', which chooses a range around 0"
    )
    assert caught.value.hint == "choose max or mse"
    sections["weights"]["symmetric"] = True
    assert check_recipe(decode_recipe(sections, "a test")).amax.weight_method == "entropy"


def test_defaults_pass_and_are_frozen():
    recipe = check_recipe(Recipe())
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.amax.percentile = 1.0
