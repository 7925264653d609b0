import tomllib
from pathlib import Path

import pytest

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError, UnknownNameError
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.quantizer_families import (
    FAMILIES,
    CenterWeights,
    DorefaWeights,
    FixedPointActivations,
    FixedPointWeights,
    ScaledWeights,
    StepActivations,
    StepWeights,
)
from ptq_cli.recipe.quantizer_settings import activation_family, family_name, weight_family
from ptq_cli.recipe.recipe_layers import (
    decode_recipe,
    merge_layers,
    preset_layer,
    preset_names,
    recipe_to_toml,
    table_layer,
)
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ActivationSettings, WeightSettings
from tests.each_case import each_case

WEIGHTS = {
    "nothing": ({}, ScaledWeights(bits=8)),
    "bits alone": ({"bits": 4}, ScaledWeights(bits=4)),
    "fixed point": ({"quantizer": "fixed_point", "integer": -2}, FixedPointWeights(8, "none", -2)),
    "dorefa": ({"quantizer": "dorefa"}, DorefaWeights(4)),
    "step": ({"quantizer": "step", "step": 0.5, "bits": 3}, StepWeights(3, 0.5)),
    "centers": ({"quantizer": "centers", "centers": 17}, CenterWeights(17, "tensor", 0, 4)),
}


@each_case("table, family", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_name_a_family_with_its_parameters(table, family):
    recipe = check_recipe(decode_recipe({"weights": table}, "a test"))
    assert weight_family(recipe.weights) == family
    assert family_name(family) == table.get("quantizer", "scaled")


def test_activations_name_a_family_with_its_parameters():
    assert activation_family(ActivationSettings(quantizer="fixed_point", integer=3)) == FixedPointActivations(
        3
    )
    assert activation_family(ActivationSettings(quantizer="step", step=0.25)) == StepActivations(0.25)


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
        "weights": {"quantizer": "centers", "centers": 8, "seed": 7},
        "activations": {"quantizer": "step", "step": 0.125},
        "override": [{"match": "head*", "weights": {"quantizer": "scaled", "bits": 8}}],
    }
    recipe = decode_recipe(table, "a test")
    assert decode_recipe(tomllib.loads(recipe_to_toml(recipe, Path())), "again") == recipe


def test_each_preset_loads_and_names_what_it_is_called_for():
    found = {name: merge_layers([preset_layer(name)]) for name in preset_names()}
    families = {name: weight_family(check_recipe(recipe).weights) for name, recipe in found.items()}
    assert families == {
        "int8_ort_cpu": ScaledWeights(bits=8),
        "fixed_point_w8a8": FixedPointWeights(8),
        "dorefa_w4a8": DorefaWeights(4),
        "scaled_w4a8": ScaledWeights(bits=4),
        "scaled_w4a4": ScaledWeights(bits=4),
        "step_w8a8": StepWeights(8),
        "codebook_w4": CenterWeights(16),
        "int8": ScaledWeights(bits=8),
        "fp8": ScaledWeights(bits=8, dtype="float8e4m3fn"),
        "w2_block32": ScaledWeights(bits=2, block_size=32),
        "w4_block32": ScaledWeights(bits=4, block_size=32),
        "w4_block128": ScaledWeights(bits=4, block_size=128),
        "w8_block32": ScaledWeights(bits=8, block_size=32),
        "int4_awq": ScaledWeights(bits=4, block_size=128),
        "nvfp4": ScaledWeights(bits=4, dtype="float4e2m1"),
        "dynamic_int8": ScaledWeights(bits=8),
    }
    assert found["int8_ort_cpu"] == Recipe()


def test_every_family_has_a_preset():
    presets = [merge_layers([preset_layer(name)]) for name in preset_names()]
    assert {recipe.weights.quantizer or "scaled" for recipe in presets} == set(FAMILIES)
