import tomllib
from pathlib import Path

import pytest

from ptq_cli.core.errors import (
    InputFileError,
    RecipeKeyError,
    RecipeSyntaxError,
    RecipeValueError,
    UnknownNameError,
)
from ptq_cli.recipe.check import check_recipe
from ptq_cli.recipe.recipe_layers import (
    PRESETS,
    RecipeLayer,
    file_layer,
    merge_layers,
    preset_layer,
    preset_names,
    recipe_to_toml,
    table_layer,
)
from ptq_cli.recipe.schema import Recipe
from tests.each_case import each_case


@pytest.fixture
def save(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def layer(where, **sections):
    return table_layer(sections, Path("/nowhere"), where)


PRESET = layer(
    "preset", amax={"percentile": 1.0}, data={"batch_size": 1}, calibration={"method": "a", "samples": 1}
)
FOLDER = layer("ptq.toml", amax={"percentile": 2.0}, calibration={"method": "b"}, data={"batch_size": 2})
FILE = layer("recipe", amax={"percentile": 3.0}, calibration={"method": "c"})
FLAGS = layer("flags", amax={"percentile": 4.0})


def test_each_key_comes_from_the_highest_layer_that_has_it():
    recipe = merge_layers([PRESET, FOLDER, FILE, FLAGS])
    assert recipe.amax.percentile == 4.0
    assert recipe.calibration.method == "c"
    assert recipe.data.batch_size == 2
    assert recipe.calibration.samples == 1
    assert recipe.runtime == Recipe().runtime


def test_limits_of_different_metrics_add_up_and_lists_are_replaced():
    low = layer(
        "low", gate={"max_drop": {"top1": 0.1, "top5": 0.1}}, evaluation={"metrics": ["top1", "top5"]}
    )
    high = layer("high", gate={"max_drop": {"top1": 0.01}}, evaluation={"metrics": ["top5"]})
    recipe = merge_layers([low, high])
    assert recipe.gate.max_drop == {"top1": 0.01, "top5": 0.1}
    assert recipe.evaluation.metrics == ["top5"]


LOCATIONS = """
[model]
path = "models/m.pt"
arch = "../src/model.py:build"
[calibration]
data = "calib.npz"
[evaluation]
data = "package.module:batches"
"""


def test_locations_start_at_the_folder_of_their_file(save, tmp_path):
    table = file_layer(save("a/b/ptq.toml", LOCATIONS)).table
    assert table == {
        "model": {"path": f"{tmp_path}/a/b/models/m.pt", "arch": f"{tmp_path}/a/src/model.py:build"},
        "calibration": {"data": f"{tmp_path}/a/b/calib.npz"},
        "evaluation": {"data": "package.module:batches"},
    }


NO_TOML = {
    "text": "method: max",
    "cut": "[calibration\n",
    "no UTF-8": b"[model]\npath = '\xff'",
    "key twice": "[amax]\nmethod = 'a'\nmethod = 'b'",
    "impossible date": "x = 2026-13-45",
    "brackets within brackets": "x = " + "[" * 5000,
    "thousands of digits": "[runtime]\nthreads = " + "1" * 5000,
    "a key of thousands of parts": f"{'.'.join('a' * 5000)} = 1",
    "a table of thousands of parts": f"[{' . '.join('a' * 5000)}]",
    "an inline key of thousands of parts": "x = {" + ".".join(['","'] * 5000) + " = 1}",
    "thousands of inline tables": "x = " + "{a = " * 5000,
    "control character": "[model]\npath = 'a\x00b'",
}


def test_a_byte_order_mark_is_no_part_of_a_recipe(save):
    assert file_layer(save("ptq.toml", b"\xef\xbb\xbf[amax]\nmethod = 'max'")).table["amax"] == {
        "method": "max"
    }


def test_a_recipe_in_utf_16_is_named(save):
    with pytest.raises(RecipeSyntaxError, match="is text in UTF-16, expected UTF-8"):
        file_layer(save("ptq.toml", "[amax]".encode("utf-16")))


@pytest.mark.parametrize("text", NO_TOML.values(), ids=NO_TOML)
def test_file_that_is_no_toml_is_refused(save, text):
    path = save("ptq.toml", text)
    with pytest.raises(RecipeSyntaxError) as caught:
        file_layer(path)
    assert caught.value.code == "PTQ-RECIPE-001"
    assert caught.value.message.startswith(f"{path} is not valid TOML: ")
    assert caught.value.hint == "see https://toml.io"


def test_missing_file_and_folder_are_input_errors(tmp_path):
    with pytest.raises(InputFileError, match=r"recipe '.*no\.toml' does not exist"):
        file_layer(tmp_path / "no.toml")
    with pytest.raises(InputFileError, match="is a folder, expected a file"):
        file_layer(tmp_path)


def test_messages_name_the_file_or_what_it_is_called(save):
    path = save("ptq.toml", "[amax]\nmthod = 'max'")
    with pytest.raises(RecipeKeyError) as caught:
        file_layer(path)
    assert caught.value.message == f"{path}: unknown key 'amax.mthod' (did you mean 'method'?)"
    with pytest.raises(RecipeKeyError, match="PTQ-RECIPE-002: my recipe: unknown key"):
        file_layer(path, "my recipe")


def test_layers_by_hand_are_checked_when_they_are_merged():
    with pytest.raises(RecipeValueError, match=r"^PTQ-RECIPE-003: high over low: 'runtime\.threads' is 'x'"):
        merge_layers([RecipeLayer({}, "low"), RecipeLayer({"runtime": {"threads": "x"}}, "high")])


@each_case("name", [path.stem for path in PRESETS.glob("*.toml")])
def test_every_preset_loads_alone(name):
    assert name in preset_names()
    check_recipe(merge_layers([preset_layer(name)]))


def test_unknown_preset_names_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        preset_layer("int8_ort")
    assert caught.value.message == "unknown preset 'int8_ort' (did you mean 'int8_ort_cpu'?)"
    assert "int8_ort_cpu" in caught.value.hint


def test_preset_cannot_be_a_path():
    with pytest.raises(UnknownNameError):
        preset_layer("../presets/int8_ort_cpu")


def test_another_preference_drops_the_profile_of_an_earlier_one():
    low = layer("low", export={"prefer": "latency", "profile": "server.json", "serve_batch": 8})
    kept = merge_layers([low, layer("high", export={"prefer": "latency"})])
    assert kept.export.profile is not None
    dropped = merge_layers([low, layer("high", export={"prefer": "size"})])
    assert (dropped.export.profile, dropped.export.serve_batch) == (None, 8)
    own = merge_layers([low, layer("high", export={"prefer": "size", "profile": "own.json"})])
    with pytest.raises(RecipeValueError, match=r"'export\.profile' has no effect"):
        check_recipe(own)


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
