"""The recipes of the sample models run as they are, and hold their own limits."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Ptq

RECIPES = Path(__file__).parents[2] / "configs" / "recipes"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    ["cifar10_cnn", "shakespeare_language_model", "shapes_detector", "spoken_digits_transformer", "w4a8"],
)
def test_a_recipe_of_a_sample_runs_and_holds_its_limits(name: str, tmp_path: Path, ptq: Ptq) -> None:
    outcome = ptq("quantize", "--recipe", str(RECIPES / f"{name}.toml"), "--run", str(tmp_path / "run"))
    assert outcome.status == 0, outcome
    assert (tmp_path / "run" / "report.html").is_file()
