"""Metrics in recipes: their files are resolved against the recipe's folder, and written relative again."""

import tomllib
from pathlib import Path

import pytest

from ptq_cli.core.errors import RecipeKeyError, RecipeValueError
from ptq_cli.recipe.recipe_layers import merge_layers, recipe_to_toml, table_layer
from ptq_cli.recipe.schema import Recipe
from tests.each_case import each_case

F1 = "torchmetrics.classification:MulticlassF1Score"
TABLE = {
    "evaluation": {"metrics": ["top1", "own.py:mine", "own.py:mine[aux]", F1, "top1[a.py:b]"]},
    "metric": [{"metric": "code/own.py:other", "name": "x", "arguments": {"k": 3, "names": ["a", 1.5]}}],
}


def resolved(table: dict[str, object], folder: Path) -> Recipe:
    return merge_layers([table_layer(table, folder, "ptq.toml")])


def test_files_are_resolved_and_names_stay(tmp_path: Path) -> None:
    recipe = resolved(TABLE, tmp_path)
    own = f"{tmp_path}/own.py:mine"
    assert recipe.evaluation.metrics == ["top1", own, f"{own}[aux]", F1, "top1[a.py:b]"]
    (metric,) = recipe.metric
    assert metric.metric == f"{tmp_path}/code/own.py:other"
    assert metric.arguments == {"k": 3, "names": ["a", 1.5]}


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    recipe = resolved(TABLE, tmp_path)
    text = recipe_to_toml(recipe, tmp_path / "run")
    assert "../own.py:mine[aux]" in text
    assert "[[metric]]" in text
    assert resolved(tomllib.loads(text), tmp_path / "run") == recipe


@each_case(
    "metric, kind, says",
    [
        ({"name": "x"}, RecipeValueError, r"'metric\.metric' is missing"),
        ({"metric": "f1", "argument": {}}, RecipeKeyError, "did you mean 'arguments'"),
        ({"metric": "f1", "arguments": 3}, RecipeValueError, r"'metric\.arguments' is 3, expected a table"),
        ({"metric": 3}, RecipeValueError, r"'metric\.metric' is 3, expected a string"),
    ],
)
def test_what_makes_no_sense_is_refused(metric: dict[str, object], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        resolved({"metric": [metric]}, Path())
