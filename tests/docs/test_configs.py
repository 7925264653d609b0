"""Every file under ``configs`` is valid, and says what it claims to say."""

import re
import tomllib
from pathlib import Path

import pytest

from ptq_cli.pipeline.run.resolve import Request, resolve
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.recipe.recipe_layers import PRESETS, preset_names

CONFIGS = Path(__file__).parents[2] / "configs"
README = (CONFIGS / "README.md").read_text(encoding="utf-8")
RECIPES = sorted((CONFIGS / "recipes").glob("*.toml"))
TARGETS = sorted((CONFIGS / "targets").glob("*.toml"))
OF_SAMPLES = {
    "cifar10_cnn",
    "shakespeare_language_model",
    "shapes_detector",
    "spoken_digits_transformer",
    "w4a8",
}


def test_the_presets_are_those_of_the_checkout() -> None:
    assert CONFIGS / "presets" == PRESETS
    assert {path.stem for path in PRESETS.iterdir()} == set(preset_names())
    assert len(preset_names()) == 16


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves(name: str, tmp_path: Path) -> None:
    recipe = resolve(Request(settings={}, preset=name, folder=tmp_path)).recipe
    assert recipe.model.path is None and recipe.calibration.data is None, "a preset names no files"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_resolves_and_names_all_that_a_run_needs(path: Path, tmp_path: Path) -> None:
    recipe = resolve(Request(settings={}, recipe_file=path, folder=tmp_path)).recipe
    places = [recipe.model.path, recipe.calibration.data, recipe.evaluation.data]
    assert all(places) and recipe.gate.has_limits
    if path.stem in OF_SAMPLES:
        assert all(Path(str(place)).exists() for place in places)
        assert recipe.model.arch is None or Path(recipe.model.arch.rpartition(":")[0]).is_file()
    else:
        assert {Path(str(place)).parent for place in places} == {path.parent}
        assert "To use it for your own model" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.stem)
def test_every_target_loads(path: Path) -> None:
    target = load_target(str(path))
    assert target.name == path.stem and target.extends


@pytest.mark.parametrize("path", [*RECIPES, *TARGETS], ids=lambda path: path.stem)
def test_every_file_has_a_line_in_the_readme_and_a_reason_for_its_settings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"({path.relative_to(CONFIGS).as_posix()})" in README
    assert text.count("#") >= len(tomllib.loads(text)) // 2 and text.startswith("# ")


def test_the_readme_names_every_preset() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(preset_names())
