import dataclasses
import math
import tomllib
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.recipe.recipe_layers import file_layer, merge_layers, recipe_to_toml, table_layer
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import (
    AmaxSettings,
    CalibrationSettings,
    EvaluationSettings,
    GateSettings,
    ImageSettings,
    ModelSettings,
    OverrideSettings,
    RuntimeSettings,
)

FULL = Recipe(
    model=ModelSettings(
        path="/models/a/m.pt",
        arch="/models/a/model.py:build",
        trust_pickle=True,
        input_shape={"x": [1, 3, 8, 8], 'odd "name".é': [2]},
    ),
    image=ImageSettings(
        mode="BGR",
        resize=[256],
        crop=[224, 224],
        scale=1 / 255,
        mean=[0.485, 0.456, 0.406],
        std=[0.229, 0.224, 0.225],
        layout="NHWC",
    ),
    calibration=CalibrationSettings(data="/data/calib.npz", method="max", samples=100),
    amax=AmaxSettings(method="percentile", percentile=99.99),
    evaluation=EvaluationSettings(data="package.module:batches", metrics=["top1", "top5"], samples=50),
    gate=GateSettings(max_drop={"top1": 0.01}, min={"sqnr_db": 25.0, "cosine": -math.inf}),
    runtime=RuntimeSettings(device="cuda:1", threads=3),
)


def reload(recipe, folder):
    path = folder / "recipe.toml"
    path.write_text(recipe_to_toml(recipe, folder), encoding="utf-8")
    return merge_layers([file_layer(path)])


@pytest.mark.parametrize("recipe", [Recipe(), FULL], ids=["defaults", "everything set"])
def test_recipe_survives_the_way_to_a_file_and_back(recipe, tmp_path):
    assert reload(recipe, tmp_path) == recipe


def test_folder_can_move_with_its_files(tmp_path):
    recipe = Recipe(model=ModelSettings(path=f"{tmp_path}/a/m.pt", arch=f"{tmp_path}/a/model.py:build"))
    run = tmp_path / "a" / "run"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text(recipe_to_toml(recipe, run))
    (tmp_path / "a").rename(tmp_path / "b")
    moved = merge_layers([file_layer(tmp_path / "b" / "run" / "recipe.toml")])
    assert moved.model.path == f"{tmp_path}/b/m.pt"
    assert moved.model.arch == f"{tmp_path}/b/model.py:build"


def test_setting_without_a_value_is_the_default_of_all_that_may_have_none():
    # TOML cannot say "none": what is left out must mean it.
    for section in dataclasses.fields(Recipe):
        kind = section.type if dataclasses.is_dataclass(section.type) else typing.get_args(section.type)[0]
        for field in dataclasses.fields(kind):
            if "None" in str(field.type):
                assert field.default is None, f"{section.name}.{field.name}"


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False)


@given(
    shapes=st.dictionaries(TEXTS, st.lists(st.integers(1, 2**40), min_size=1, max_size=3), max_size=3),
    limits=st.dictionaries(TEXTS, NUMBERS, max_size=3),
    metrics=st.lists(TEXTS, max_size=3),
    percentile=NUMBERS,
    overrides=st.lists(
        st.builds(OverrideSettings, match=TEXTS, amax=st.none() | TEXTS, weight_amax=st.none() | TEXTS),
        max_size=3,
    ),
)
def test_any_values_survive_toml(shapes, limits, metrics, percentile, overrides):
    recipe = Recipe(
        model=ModelSettings(input_shape=shapes),
        amax=AmaxSettings(method="percentile", percentile=percentile),
        override=overrides,
        evaluation=EvaluationSettings(metrics=metrics),
        gate=GateSettings(max_drop=limits),
    )
    table = tomllib.loads(recipe_to_toml(recipe, Path("/")))
    assert merge_layers([table_layer(table, Path("/"), "a test")]) == recipe
