"""From a request to one recipe: the order of the layers, and what is looked up before any work."""

from pathlib import Path
from typing import Any

import pytest

from ptq_cli.core.errors import GateError, InputFileError, PtqError, UnknownNameError, UsageError
from ptq_cli.recipe.recipe_layers import RecipeLayer, table_layer
from ptq_cli.setup.resolve import Request, resolve
from tests.each_case import each_case


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def batch_size(size: int, where: str) -> RecipeLayer:
    return table_layer({"data": {"batch_size": size}}, Path(), where)


def write(name: str, size: int) -> Path:
    path = Path(name)
    path.write_text(f"[data]\nbatch_size = {size}\n")
    return path


def test_the_preset_lies_beneath_everything() -> None:
    assert resolve(Request(settings={})).recipe.data.batch_size == 32


def test_each_layer_overrides_the_one_beneath() -> None:
    write("ptq.toml", 1)
    assert resolve(Request(settings={})).recipe.data.batch_size == 1
    recipe = write("recipe.toml", 2)
    assert resolve(Request(settings={}, recipe_file=recipe)).recipe.data.batch_size == 2
    earlier = batch_size(3, "earlier flags")
    assert resolve(Request(settings={}, recipe_file=recipe), earlier=earlier).recipe.data.batch_size == 3
    flags = Request(settings={"batch_size": 4}, recipe_file=recipe)
    assert resolve(flags, earlier=earlier).recipe.data.batch_size == 4


def test_the_run_s_own_recipe_counts_only_where_there_is_no_other() -> None:
    own = batch_size(9, "the run")
    assert resolve(Request(settings={}), otherwise=own).recipe.data.batch_size == 9
    recipe = write("recipe.toml", 2)
    assert resolve(Request(settings={}, recipe_file=recipe), otherwise=own).recipe.data.batch_size == 2
    write("ptq.toml", 1)
    assert resolve(Request(settings={}), otherwise=own).recipe.data.batch_size == 1


def test_a_model_named_as_an_argument_overrides_the_recipe() -> None:
    Path("ptq.toml").write_text('[model]\npath = "a.pt"\n')
    assert resolve(Request(settings={}, model=Path("b.pt"))).recipe.model.path == str(Path("b.pt").absolute())


def test_relative_paths_start_where_they_were_named(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    recipe = Path("recipes/r.toml")
    recipe.write_text('[model]\npath = "m.pt"\narch = "m.py:build"\n')
    resolved = resolve(Request(settings={"data": "calib.npz"}, recipe_file=recipe)).recipe
    assert resolved.model.path == str(tmp_path / "recipes/m.pt")
    assert resolved.model.arch == f"{tmp_path}/recipes/m.py:build"
    assert resolved.calibration.data == str(tmp_path / "calib.npz")


REFUSED: dict[str, tuple[dict[str, Any], type[PtqError], str]] = {
    "method": ({"method": "nope"}, UnknownNameError, "unknown method 'nope'"),
    "target": ({"target": "nope"}, UnknownNameError, "unknown target 'nope'"),
    "amax": ({"amax": "nope"}, UnknownNameError, "'nope'"),
    "metric": ({"metric": ["nope"]}, UnknownNameError, "'nope'"),
    "limit on an unknown metric": ({"min": {"nope": 1.0}}, UnknownNameError, "'nope'"),
    "limit on an unknown metric of an output": ({"min": {"nope[a]": 1.0}}, UnknownNameError, "'nope'"),
    "negative drop": ({"max_drop": {"top1": -1.0}}, GateError, "is negative"),
    "drop that cannot fail": ({"max_drop": {"top1": 1}}, GateError, "a drop of 100 points can never fail"),
    "drop of another output": (
        {"metric": ["top1[cls]"], "max_drop": {"top1": 0.02}},
        GateError,
        r"named as top1\[cls\]",
    ),
    "drop of a comparison": ({"max_drop": {"cosine": 0.1}}, GateError, "cosine has no drop"),
    "drop of an error": ({"max_drop": {"max_abs_error[a]": 0.1}}, GateError, "max_abs_error has no drop"),
    "minimum of an error": ({"min": {"max_abs_error": 0.1}}, GateError, "would pass the worse model"),
    "amax of an override": ({"override": [{"match": "*", "amax": "mee"}]}, UnknownNameError, "'mee'"),
    "amax of weights of an override": (
        {"override": [{"match": "*", "amax": "mse", "weight_amax": "mee"}]},
        UnknownNameError,
        "'mee'",
    ),
    "override of nothing": ({"override": [{"match": "*"}]}, PtqError, "the override of '\\*' sets nothing"),
    "unknown setting": ({"methd": "max"}, UsageError, r"no setting 'methd' \(did you mean 'method'\?\)"),
}


@each_case("settings, error, message", REFUSED.values(), ids=REFUSED.keys())
def test_names_are_looked_up_before_any_work(settings, error, message):
    with pytest.raises(error, match=message):
        resolve(Request(settings=settings))


@pytest.mark.parametrize("limit", ["sqnr_db", "sqnr_db[second output]", "top1"])
def test_a_limit_on_any_output_is_allowed(limit: str) -> None:
    assert resolve(Request(settings={"min": {limit: 0.5}})).recipe.gate.min == {limit: 0.5}


def test_ptq_toml_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ptq.toml").mkdir()
    with pytest.raises(InputFileError, match=r"recipe 'ptq.toml' is a folder"):
        resolve(Request(settings={}))
