import dataclasses
import math
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError, UnknownNameError
from ptq_cli.recipe.check import check_recipe, family_name, weight_family
from ptq_cli.recipe.declaration import Setting
from ptq_cli.recipe.quantizer_families import (
    FAMILIES,
    CenterWeights,
    DorefaWeights,
    FixedPointWeights,
    ScaledWeights,
    StepWeights,
)
from ptq_cli.recipe.recipe_layers import merge_layers, recipe_to_toml, table_layer
from ptq_cli.recipe.schema import Recipe, decode_recipe
from ptq_cli.recipe.sections import WeightSettings
from tests.each_case import each_case

WEIGHTS = {
    "nothing": ({}, ScaledWeights(bits=8)),
    "bits alone": ({"bits": 4}, ScaledWeights(bits=4)),
    "fixed point": ({"quantizer": "fixed_point", "integer": -2}, FixedPointWeights(8, "none", -2)),
    "dorefa": ({"quantizer": "dorefa"}, DorefaWeights(4)),
    "step": ({"quantizer": "step", "step": 0.5, "bits": 3}, StepWeights(3, 0.5)),
    "centers": ({"quantizer": "centers", "centers": 17}, CenterWeights(17, "tensor")),
}


@each_case("table, family", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_name_a_family_with_its_parameters(table, family):
    recipe = check_recipe(decode_recipe({"weights": table}, "a test"))
    assert weight_family(recipe.weights) == family
    assert family_name(family) == table.get("quantizer", "scaled")


REFUSED = {
    "unknown family": (
        {"weights": {"quantizer": "fixedpoint"}},
        UnknownNameError,
        "did you mean 'fixed_point'",
    ),
    "unknown key": ({"weights": {"bitz": 4}}, RecipeKeyError, "did you mean 'bits'"),
    "parameter of another family": (
        {"weights": {"quantizer": "centers", "bits": 4}},
        RecipeKeyError,
        "'weights.bits' is not a parameter of quantizer 'centers'",
    ),
    "too many bits": ({"weights": {"bits": 9}}, RecipeValueError, "'weights.bits' is 9"),
    "too few bits": ({"weights": {"bits": 1}}, RecipeValueError, "2 to 8"),
    "eight bits of dorefa": (
        {"weights": {"quantizer": "dorefa", "bits": 8}},
        RecipeValueError,
        "quantizer 'dorefa' expects 2 to 7",
    ),
    "one center": ({"weights": {"quantizer": "centers", "centers": 1}}, RecipeValueError, "2 to 256"),
    "alpha whose scales are no powers of two": (
        {"weights": {"quantizer": "fixed_point", "alpha": "auto"}},
        RecipeValueError,
        "expects 'none' or 'auto_po2'",
    ),
    "a point that alpha finds": (
        {"weights": {"quantizer": "fixed_point", "alpha": "auto_po2", "integer": 0}},
        RecipeValueError,
        "finds the point itself",
    ),
    "step of 0": ({"weights": {"quantizer": "step", "step": 0.0}}, RecipeValueError, "positive"),
    "step of NaN": (
        {"activations": {"quantizer": "step", "step": float("nan")}},
        RecipeValueError,
        "positive",
    ),
    "centers of activations": (
        {"activations": {"quantizer": "centers"}},
        RecipeValueError,
        "only for weights: each value would have to be compared with every center",
    ),
    "dorefa of activations": (
        {"activations": {"quantizer": "dorefa"}},
        RecipeValueError,
        "0 is not one of its levels",
    ),
    "a point of scaled activations": (
        {"activations": {"integer": 3}},
        RecipeKeyError,
        "'activations.integer' is not a parameter of quantizer 'scaled'",
    ),
    "override": (
        {"override": [{"match": "*", "weights": {"quantizer": "dorefa", "bits": 8}}]},
        RecipeValueError,
        "'override.weights.bits' is 8",
    ),
    "override of activations": (
        {"override": [{"match": "*", "activations": {"quantizer": "centers"}}]},
        RecipeValueError,
        "'override.activations.quantizer' is 'centers'",
    ),
    "override of nothing": ({"override": [{"match": "*"}]}, RecipeValueError, "sets nothing"),
}


@each_case("table, error, message", REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(table, error, message):
    with pytest.raises(error) as found:
        check_recipe(decode_recipe(table, "a test"))
    assert message in found.value.message
    assert found.value.hint


def layer(**weights):
    return table_layer({"weights": weights}, Path(), "a test")


def test_a_layer_that_names_a_quantizer_begins_anew():
    below = layer(quantizer="fixed_point", bits=6, integer=2)
    assert merge_layers([below, layer(quantizer="step")]).weights == WeightSettings(quantizer="step")
    assert merge_layers([below, layer(bits=4)]).weights == WeightSettings(
        quantizer="fixed_point", bits=4, integer=2
    )


def test_a_recipe_with_quantizers_is_written_and_read_again():
    table = {
        "weights": {"quantizer": "centers", "centers": 8},
        "activations": {"quantizer": "step", "step": 0.125},
        "override": [{"match": "head*", "weights": {"quantizer": "scaled", "bits": 8}}],
    }
    recipe = decode_recipe(table, "a test")
    assert decode_recipe(tomllib.loads(recipe_to_toml(recipe, Path())), "again") == recipe


@each_case("name", FAMILIES)
def test_every_default_of_a_family_is_allowed(name: str) -> None:
    family = FAMILIES[name]
    assert family.name == name and family.meaning
    for parameter in (*family.weight_parameters, *(family.activation_parameters or ())):
        assert parameter.allows(parameter.default), parameter.name


def test_it_is_there_without_torch() -> None:
    code = "import sys, ptq_cli.recipe.quantizer_families; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_text_must_be_one_of_the_words() -> None:
    parameter = Setting(help="Granularity.", choices=("channel", "tensor"))
    assert parameter.allows("tensor") and not parameter.allows("row")


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
