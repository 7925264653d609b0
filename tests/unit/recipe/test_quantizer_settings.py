import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError, UnknownNameError
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.declaration import Setting
from ptq_cli.recipe.quantizer_families import (
    FAMILIES,
    CenterWeights,
    DorefaWeights,
    FixedPointWeights,
    ScaledWeights,
    StepWeights,
)
from ptq_cli.recipe.quantizer_settings import family_name, weight_family
from ptq_cli.recipe.recipe_layers import merge_layers, recipe_to_toml, table_layer
from ptq_cli.recipe.schema import decode_recipe
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
